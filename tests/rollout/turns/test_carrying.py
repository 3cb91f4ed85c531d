"""An attempt in a sandbox that is handed back goes on elsewhere with its files, or says why it starts again."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.rollout.continuing import Course, OtherContextError
from services.rollout.engines.base import GenerateRequest, Generation, Ids
from services.rollout.engines.cut import Cut, unless_cut
from services.rollout.formats.calls import Call
from services.rollout.turns.carrying import IN_A_CALL, Carrying
from services.rollout.turns.episode import End
from services.rollout.turns.places import Places
from services.rollout.turns.runner import Runner
from services.rollout.turns.tokens import Tokens
from shared.contracts import Continuation, Task, ToolCall, WorkspaceRef
from shared.storage import ObjectStore
from tests.rollout.turns import templates
from tests.rollout.turns.scripted import ScriptedEngine, says, tokens_of
from tests.rollout.turns.test_runner import slot_of, task_of, written
from tests.sandbox.machines import MODES, settings_of

FIRST, SECOND = 3, 8
"""Policy versions."""


@dataclass(slots=True)
class Interrupted(ScriptedEngine):
    """Hands the attempt back in the middle of turn `at`, or, where `whole`, as soon as that turn was sampled."""

    at: int = -1
    whole: bool = False
    near: bool = False
    """Of the cut: the process knew that it would end."""
    cut: Cut | None = None
    version: int = FIRST
    grace_s: tuple[float | None, ...] = ()

    async def generate(self, request: GenerateRequest) -> Generation:
        made = await ScriptedEngine.generate(self, request)
        made = replace(made, versions=((len(made.token_ids), self.version),))
        if not request.request_id.endswith(f"/{self.at}") or self.cut is None:
            return made
        self.cut.near = self.near
        self.cut.ask("hand_back", *self.grace_s)
        if self.whole:
            return made
        size = len(made.token_ids) // 2
        return replace(
            made, token_ids=made.token_ids[:size], logprobs=made.logprobs[:size],
            versions=((size, self.version),), stop_reason="cut",
        )  # fmt: skip


class World:
    """One process after another, each with a sandbox of its own; the store is common."""

    def __init__(self, tokens: Tokens, folder: Path, *commands: str) -> None:
        self.tokens, self.task = tokens, task_of(tools=("bash",))
        self.store = ObjectStore(folder.as_uri())
        calls = ["".join(self._written(command) for command in turn.split(" ;; ")) for turn in commands]
        self.script = says(tokens, [*calls, "done"])

    def _written(self, command: str) -> str:
        return written(self.tokens, self.task, Call("bash", {"command": command}))

    def first(
        self,
        at: int,
        *,
        whole: bool = False,
        near: bool = False,
        grace_s: Sequence[float | None] = (),
        **more: Any,
    ) -> tuple[End, Course]:
        cut, course = Cut(), Course()
        engine = Interrupted(self._of_turn(), at=at, whole=whole, near=near, cut=cut, grace_s=tuple(grace_s))
        return self._run(engine, cut, course, **more), course

    def second(self, rest: Continuation, **more: Any) -> tuple[End, Interrupted]:
        engine = Interrupted(self._of_turn(rest), version=SECOND)
        return self._run(engine, Cut(), Course(rest), **more), engine

    def after_a_call(self, rest: Continuation | None, turn: int) -> tuple[End, Course]:
        """A process that knew that it would end, and cuts at once when the first call of `turn` is over."""
        cut, course = Cut(), Course(rest)
        cut.near = True

        def told(call: ToolCall) -> None:
            if call.turn == turn:
                cut.ask("hand_back", 0.0)

        return self._run(Interrupted(self._of_turn(rest)), cut, course, told=told), course

    def at_once(self, rest: Continuation) -> tuple[End, Course]:
        """A process that has to hand it back as soon as it has it."""
        cut, course = Cut(), Course(rest)
        cut.ask("hand_back")
        return self._run(Interrupted(self._of_turn(rest)), cut, course), course

    def _of_turn(self, rest: Continuation | None = None) -> Callable[[int, GenerateRequest], Ids]:
        """By the number of the turn; of a turn that goes on, its rest."""
        at = len(rest.turns) - 1 if rest else -1
        had = rest.turns[-1].token_ids.size if rest and rest.turns[-1].stop_reason == "cut" else 0

        def answer(number: int, request: GenerateRequest) -> Ids:
            turn = int(request.request_id.rpartition("/")[2])
            return self.script(turn, request)[had if turn == at else 0 :]

        return answer

    def _run(
        self, engine: Any, cut: Cut, course: Course, most_bytes: int = 1 << 20, task: Task | None = None,
        told: Callable[[ToolCall], None] = lambda call: None,
    ) -> End:  # fmt: skip
        async def body() -> End:
            places = Places(settings_of(MODES[0]), 1)
            carrying = Carrying(self.store, "a-run", most_bytes)
            runner = Runner(engine, self.tokens, places, carrying=carrying, told=told)
            try:
                return await runner.attempt(task or self.task, slot_of(), 7, cut, course)
            finally:
                assert places.lent == 0
                await places.close()

        return asyncio.run(body())


@pytest.fixture
def tokens(tiny_tokenizer: Any) -> Tokens:
    return tokens_of(tiny_tokenizer, templates.QWEN_LIKE)


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that runs when the word comes may end, however busy the machine is."""
    monkeypatch.setattr(
        "services.rollout.turns.episode.unless_cut", functools.partial(unless_cut, grace_s=60.0)
    )


def again(course: Course) -> Continuation:
    """As it comes from its topic."""
    return Continuation.model_validate_json(course.handed_back().model_dump_json())


@pytest.mark.usefixtures("patience")
@pytest.mark.parametrize("whole", [False, True])
def test_files_answers_tokens_and_versions_are_there_afterwards(
    tokens: Tokens, tmp_path: Path, whole: bool
) -> None:
    """No command ran twice: each counts its runs, and the first says what can be said once."""
    count = "echo run >> runs"
    world = World(
        tokens, tmp_path,
        f"{count}; mkdir -p d; head -c 9 /dev/urandom | od -An -tx1 | tee d/once; rm a.txt",
        f"{count}; chmod 700 d/once; ln -s d/once seen; cat seen",
        f"{count}; cat d/once; stat -c %a d/once; wc -l < runs; ls",
    )  # fmt: skip
    first, course = world.first(1 if whole else 2, whole=whole)
    assert (first.stop_reason, course.lost) == ("cancelled", "")
    rest = again(course)
    assert rest.workspace is not None and len(rest.tool_turns) == 2
    end, engine = world.second(rest)
    assert (end.stop_reason, end.turns, len(end.tool_calls)) == ("stop", 4, 3)
    once = first.tool_calls[0].result
    assert [call.result for call in end.tool_calls] == [once, once, f"{once}\n700\n3\nd\nruns\nseen"]
    assert end.tool_calls[:2] == first.tool_calls[:2]
    assert end.artifacts["workspace/d/once"].strip() == once.strip()
    assert end.artifacts["workspace/runs"] == "run\n" * 3
    assert '"deleted": ["a.txt"]' in end.artifacts["workspace"]
    (sequence,) = end.sequences
    own = sequence.loss_mask.astype(bool)
    before = np.concatenate([turn.token_ids for turn in rest.turns])
    np.testing.assert_array_equal(sequence.token_ids[own][: len(before)], before)
    np.testing.assert_array_equal(
        sequence.logprobs[own][: len(before)], np.concatenate([turn.logprobs for turn in rest.turns])
    )
    assert sequence.versions()[own].tolist() == [FIRST] * len(before) + [SECOND] * (own.sum() - len(before))
    assert len(engine.asked) == 2


@pytest.mark.usefixtures("patience")
def test_before_the_first_call_nothing_is_carried(tokens: Tokens, tmp_path: Path) -> None:
    world = World(tokens, tmp_path, "cat a.txt")
    _, course = world.first(0)
    rest = again(course)
    assert rest.workspace is None and len(rest.turns) == 1 and not list(tmp_path.rglob("*"))
    end, _ = world.second(rest)
    assert [call.result for call in end.tool_calls] == ["broken"]


def test_in_the_middle_of_a_call_it_starts_again(tokens: Tokens, tmp_path: Path) -> None:
    world = World(tokens, tmp_path, "echo a > b", "echo half > c; sleep 60")
    first, course = world.first(1, whole=True)
    assert first.stop_reason == "cancelled"
    assert course.lost == IN_A_CALL and again(course) == Continuation(hops=1)


@pytest.mark.parametrize("calls_before", [0, 1])
def test_calls_that_were_cut_off_are_undone_and_run_again_elsewhere(
    tokens: Tokens, tmp_path: Path, calls_before: int
) -> None:
    """Where the process knew that it would end; what was half done would be seen by the second run."""
    slow = "ls; test ! -e half || exit 9; echo more >> a.txt; touch half; sleep 4; cat a.txt"
    world = World(tokens, tmp_path, *["echo kept > keep"][:calls_before], slow)
    first, course = world.first(calls_before, whole=True, near=True, grace_s=[0.5])
    assert (first.stop_reason, course.lost) == ("cancelled", "")
    rest = again(course)
    assert len(rest.turns) == calls_before + 1 and len(rest.tool_turns) == calls_before
    assert (rest.workspace is None) == (not calls_before)
    end, engine = world.second(rest)
    assert (end.stop_reason, len(end.tool_calls), len(engine.asked)) == ("stop", calls_before + 1, 1)
    assert end.tool_calls[-1].result == ("a.txt\nkeep\n" if calls_before else "a.txt\n") + "broken\nmore"


def test_who_hands_it_back_before_going_on_hands_back_all_of_it(tokens: Tokens, tmp_path: Path) -> None:
    """It waited for a sandbox until this process ended too: nothing of what was sampled, or done, is gone."""
    world = World(tokens, tmp_path, "echo a > b", "cat b")
    _, course = world.first(1, whole=True, grace_s=[None])
    rest = again(course)
    assert rest.workspace is not None
    end, course = world.at_once(rest)
    assert (end.stop_reason, end.turns, course.lost) == ("cancelled", 0, "")
    handed = again(course)
    assert handed.model_dump_json() == rest.model_copy(update={"hops": 2}).model_dump_json()
    end, engine = world.second(handed)
    assert (end.stop_reason, [call.result for call in end.tool_calls][1:]) == ("stop", ["a"])
    assert len(engine.asked) == 1


def test_of_several_calls_of_a_turn_all_are_undone_process_after_process(
    tokens: Tokens, tmp_path: Path
) -> None:
    """The first of three is over, the second is cut off, in two processes; the third goes through."""
    world = World(tokens, tmp_path, "echo kept > keep", "echo run >> runs ;; sleep 2; ls ;; cat runs")
    rest = None
    for hops in (1, 2):
        end, course = world.after_a_call(rest, 1)
        rest = again(course)
        assert (end.stop_reason, [call.turn for call in end.tool_calls]) == ("cancelled", [0, 1, 1])
        assert (rest.hops, len(rest.turns), len(rest.tool_turns), course.lost) == (hops, 2, 1, "")
    assert rest is not None
    end, engine = world.second(rest)
    assert [call.result for call in end.tool_calls][2:] == ["a.txt\nkeep\nruns", "run"]
    assert len(engine.asked) == 1


def test_at_a_publish_a_call_that_runs_is_waited_for(tokens: Tokens, tmp_path: Path) -> None:
    world = World(tokens, tmp_path, "echo a > b", "sleep 3; echo whole > c")
    first, course = world.first(1, whole=True, grace_s=[None])
    assert (first.stop_reason, course.lost, len(first.tool_calls)) == ("cancelled", "", 2)
    end, _ = world.second(again(course))
    assert end.artifacts["workspace/c"] == "whole\n"


@pytest.mark.usefixtures("patience")
def test_what_is_too_large_starts_again(tokens: Tokens, tmp_path: Path) -> None:
    world = World(tokens, tmp_path, "head -c 5000 /dev/zero > big")
    _, course = world.first(1, most_bytes=4096)
    assert "its workspace cannot be carried: the workspace holds 50" in course.lost
    assert "at most 4096 are carried" in course.lost and again(course) == Continuation(hops=1)


@pytest.mark.usefixtures("patience")
@pytest.mark.parametrize("damage", ["other", "gone", "large"])
def test_a_workspace_that_is_not_what_was_announced_is_not_gone_on_with(
    tokens: Tokens, tmp_path: Path, damage: str
) -> None:
    world = World(tokens, tmp_path, "echo a > b")
    _, course = world.first(1)
    rest = again(course)
    assert rest.workspace is not None
    (kept,) = (path for path in tmp_path.rglob("*") if path.is_file())
    if damage == "other":
        kept.write_bytes(kept.read_bytes()[:-1] + b"!")
    elif damage == "gone":
        kept.unlink()
    else:
        huge = WorkspaceRef(uri=rest.workspace.uri, sha256=rest.workspace.sha256, size_bytes=1 << 40)
        rest = rest.model_copy(update={"workspace": huge})
    why = {"other": "hashes to", "gone": "no such object|missing|not there", "large": "announced with"}[
        damage
    ]
    with pytest.raises(OtherContextError, match=f"its workspace cannot be put back: .*({why})"):
        world.second(rest)


def test_tools_of_a_domain_keep_their_own_state(tokens: Tokens, tmp_path: Path) -> None:
    """It may be in their memory: such an attempt starts again, as before."""
    world = World(tokens, tmp_path, "echo a > b")
    kept = Runner(ScriptedEngine(world.script), tokens, carrying=Carrying(world.store, "a-run"))._kept_here
    assert kept(task_of(tools=("bash", "submit"))) == ""
    assert "'count'" in kept(task_of(tools=("bash", "count")))
