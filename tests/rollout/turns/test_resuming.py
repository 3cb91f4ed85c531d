"""An attempt of many turns that is handed back goes on behind the same context, its tools run again."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.rollout.continuing import Course, OtherContextError
from services.rollout.engines.base import GenerateRequest, Generation, Ids
from services.rollout.engines.cut import Cut
from services.rollout.engines.instant import InstantEngine
from services.rollout.turns.episode import End
from services.rollout.turns.resuming import Resuming
from services.rollout.turns.runner import Runner
from services.rollout.turns.tokens import Tokens
from shared.contracts import Continuation, Limits, Sampling
from shared.domains.tools import Bench
from tests.rollout.engines.subjects import settings_of
from tests.rollout.parts import make_task
from tests.rollout.turns.scripted import tokens_of

CALL = '```tool_call\n{"name": "count", "arguments": {}}\n```'


class Counting:
    """A domain whose tool has a state of its own."""

    def __init__(self, start: int = 0) -> None:
        self.start = start

    def tools(self, bench: Bench) -> list[Any]:
        said = self.start

        async def count() -> str:
            """One more each time."""
            nonlocal said
            said += 1
            return f"this is call {said}"

        return [count]


class World:
    """The same task in one process after another. `slow` is the turn that takes a minute."""

    def __init__(self, tokenizer: Any, folder: Path) -> None:
        self.tokens: Tokens = tokens_of(tokenizer)
        self.task = make_task(
            settings_of(folder), samples=1, tools=("count",),
            limits=Limits(turns=4, context_tokens=4000, wall_seconds=60.0),
            sampling=Sampling(max_tokens=500).model_dump(exclude={"samples", "group_size"}),
        )  # fmt: skip
        end = np.array(sorted(self.tokens.stop_ids), dtype=np.int32)
        self.turn = np.concatenate([self.tokens.encode(CALL)[0], end])

    def attempt(
        self, version: int, before: Continuation | None = None, slow: int = -1, domain: Counting | None = None
    ) -> tuple[End, Course]:
        begun = before.turns[-1].token_ids.size if before and before.turns[-1].stop_reason == "cut" else 0
        at = len(before.turns) - 1 if before else -1
        course, cut = Course(before), Cut()

        def answer(request: GenerateRequest) -> Ids:
            return self.turn[begun:] if request.request_id.endswith(f"/{at}") else self.turn

        def latency(request: GenerateRequest) -> float:
            return 2.0 if request.request_id.endswith(f"/{slow}") else 0.0

        async def body() -> End:
            engine = InstantEngine(answer, latency)
            await engine.load_policy(Path("none"), version, None)
            runner = Runner(engine, self.tokens, domain_of=lambda name: domain or Counting())
            if slow >= 0:
                asyncio.get_running_loop().call_later(1.0, cut.ask, "hand_back")
            return await runner.attempt(self.task, self.task.slots()[0], 7, cut, course)

        return asyncio.run(body()), course


def test_it_ends_as_if_nobody_had_cut_it(tiny_tokenizer: Any, tiny_folder: Path) -> None:
    world = World(tiny_tokenizer, tiny_folder)
    whole, _ = world.attempt(1)
    first, course = world.attempt(1, slow=2)
    assert first.stop_reason == "cancelled"
    rest = course.handed_back()
    assert [turn.stop_reason for turn in rest.turns] == ["stop", "stop", "cut"]
    end, _ = world.attempt(2, rest)
    assert (end.stop_reason, end.turns, len(end.tool_calls)) == (whole.stop_reason, 4, len(whole.tool_calls))
    for name in ("token_ids", "loss_mask", "logprobs"):
        np.testing.assert_array_equal(getattr(end.sequences[0], name), getattr(whole.sequences[0], name))
    versions = end.sequences[0].versions()
    own = versions[end.sequences[0].loss_mask.astype(bool)]
    before = sum(turn.token_ids.size for turn in rest.turns)
    assert own.tolist() == [1] * before + [2] * (len(own) - before)


def test_tools_that_answer_otherwise_are_another_context(tiny_tokenizer: Any, tiny_folder: Path) -> None:
    world = World(tiny_tokenizer, tiny_folder)
    _, course = world.attempt(1, slow=2)
    with pytest.raises(OtherContextError, match="another context"):
        world.attempt(2, course.handed_back(), domain=Counting(5))


@pytest.mark.parametrize("room", [5, 3])
def test_a_turn_that_was_cut_at_its_last_token_has_its_length(room: int) -> None:
    """And it has here, where there is less room: as `cancelled` it would wait for a process that nobody asks for."""
    context, ids = np.arange(4, dtype=np.int32), np.arange(5, dtype=np.int32)
    cut = Generation(ids, -ids.astype(np.float32), ((5, 1),), "cut")
    course = Course()
    course.made(cut, context)

    class Nobody:
        async def sample(self, *asked: Any) -> Generation:
            raise AssertionError(asked)

    made = asyncio.run(Resuming(Nobody(), Course(course.handed_back())).sample(context, room, 0))
    assert made.stop_reason == "length"
    np.testing.assert_array_equal(made.token_ids, ids)
