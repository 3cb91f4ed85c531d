"""Tasks with tools through the real service on a real broker, with a real sandbox; only the engine is scripted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.rollout.chat import ChatCodec
from services.rollout.engines.base import GenerateRequest, Ids
from services.rollout.engines.gated import GatedEngine
from services.rollout.engines.instant import InstantEngine
from services.rollout.formats.calls import Call
from services.rollout.service import RolloutService
from services.rollout.turns.tokens import Tokens
from shared.contracts import NOT_SAMPLED, ChatMessage, Control, Limits, Sampling, Trajectory
from shared.settings import Settings
from tests.rollout.parts import Bench, make_policy, make_task
from tests.rollout.turns.scripted import says
from tests.rollout.turns.test_runner import written

Make = Callable[..., Settings]


@pytest.fixture
def settings(make_settings: Make, tiny_folder: Path) -> Settings:
    return make_settings(model={"path": str(tiny_folder)}, rollout={"max_batch": 2, "follow": "drain"})


def agentic(settings: Settings, index: int, **changes: Any) -> Any:
    values: dict[str, Any] = {
        "tools": ("bash", "submit"),
        "files": {"a.txt": "17\n"},
        "sampling": Sampling(max_tokens=200).model_dump(exclude={"samples", "group_size"}),
        "limits": Limits(turns=4, context_tokens=4000, wall_seconds=60.0),
    }
    return make_task(settings, index, **(values | changes))


def test_tasks_with_tools_beside_tasks_without(settings: Settings, tiny_folder: Path) -> None:
    codec = ChatCodec.open(str(tiny_folder))
    tokens = Tokens(codec.tokenizer, codec.stop_ids)
    task: Any = agentic(settings, 1)
    turns = says(
        tokens,
        [
            written(tokens, task, Call("bash", {"command": "cat a.txt; echo 1 >> a.txt; wc -l < a.txt"})),
            written(tokens, task, Call("submit", {"answer": "17"})),
        ],
    )
    plain = np.concatenate([tokens.encode("2")[0], [tokens.end_id]]).astype(np.int32)

    def answer(request: GenerateRequest) -> Ids:
        if not request.episode:
            return plain
        return turns(int(request.request_id.rpartition("/")[2]), request)

    shown = (
        ChatMessage(role="assistant", content='<tool_call>{"name": "bash", "arguments": {"command": "cat a.txt"}}</tool_call>'),
        ChatMessage(role="assistant", content='<tool_call>{"name": "submit", "arguments": {"answer": "17"}}</tool_call>'),
    )  # fmt: skip

    async def body() -> list[Trajectory]:
        bench, stop = Bench(settings), asyncio.Event()
        engine = GatedEngine(InstantEngine(answer), "drain")
        service = asyncio.create_task(RolloutService(settings, "rollout-0", engine, codec).run(stop))
        try:
            await bench.announce(make_policy(settings, tiny_folder / "model.safetensors", 0))
            await bench.schedule(
                make_task(settings, 0, samples=2),
                agentic(settings, 1, samples=3),
                agentic(settings, 2, samples=1, stage="sft", demonstration=shown),
            )
            made: list[Trajectory] = await bench.trajectories(6)
            # Every session was given back.
            await bench.heartbeat(lambda beat: beat.processed == 3 and not beat.gauges["sandbox_sessions"])
            await bench.producer.send(
                bench.names.control, Control(run_id=settings.run.name, kind="end", reason="all is done")
            )
            await asyncio.wait_for(service, 30)
            return made
        finally:
            stop.set()
            await service
            await bench.close()

    made = {(m.slot.group_id[-1], m.slot.sample_index): m for m in asyncio.run(body())}
    assert set(made) == {("0", 0), ("0", 1), ("1", 0), ("1", 1), ("1", 2), ("2", 0)}
    assert all(made["0", index].final_answer == "2" for index in range(2))
    for index in range(3):
        attempt = made["1", index]
        assert (attempt.stop_reason, attempt.final_answer, attempt.turns) == ("stop", "17", 2)
        assert [call.result for call in attempt.tool_calls] == ["17\n2", ""]
        assert (attempt.first_version, attempt.last_version) == (0, 0)
        assert attempt.timings.tools > 0
        (sequence,) = attempt.sequences
        assert "<|tool|>17\n2<|end|>" in tokens.raw(sequence.token_ids)
    shown_again = made["2", 0]
    assert (shown_again.stop_reason, shown_again.sampling_mode) == ("demonstration", "demonstration")
    assert {span.version for span in shown_again.sequences[0].version_spans} == {NOT_SAMPLED}
    assert "<|tool|>17<|end|>" in tokens.raw(shown_again.sequences[0].token_ids)
    assert shown_again.final_answer == "17"


@pytest.mark.parametrize(
    ("mode", "versions"), [("in_flight", (0, 1)), ("between_turns", (0, 1)), ("drain", (0, 0))]
)
def test_a_policy_that_comes_while_a_tool_runs(
    make_settings: Make, tiny_folder: Path, mode: Any, versions: tuple[int, int]
) -> None:
    """The next turn has it, or, where whole episodes are waited for, the next episode."""
    settings = make_settings(model={"path": str(tiny_folder)}, rollout={"max_batch": 2, "follow": mode})
    codec = ChatCodec.open(str(tiny_folder))
    tokens = Tokens(codec.tokenizer, codec.stop_ids)
    task: Any = agentic(settings, 1)
    turns = says(
        tokens,
        [
            written(tokens, task, Call("bash", {"command": "sleep 1.5"})),
            written(tokens, task, Call("submit", {"answer": "17"})),
        ],
    )

    def answer(request: GenerateRequest) -> Ids:
        return turns(int(request.request_id.rpartition("/")[2]), request)

    async def body() -> list[Trajectory]:
        bench, stop = Bench(settings), asyncio.Event()
        engine = GatedEngine(InstantEngine(answer), mode)
        service = asyncio.create_task(RolloutService(settings, "rollout-0", engine, codec).run(stop))
        weights = tiny_folder / "model.safetensors"
        try:
            await bench.announce(make_policy(settings, weights, 0))
            await bench.schedule(agentic(settings, 1, samples=1))
            await bench.heartbeat(lambda beat: beat.gauges.get("sampled_tokens", 0) > 0)
            await bench.announce(make_policy(settings, weights, 1))
            await bench.heartbeat(lambda beat: beat.policy_version == 1)
            await bench.schedule(agentic(settings, 2, samples=1))
            made: list[Trajectory] = await bench.trajectories(2)
            return made
        finally:
            stop.set()
            await service
            await bench.close()

    first, second = sorted(asyncio.run(body()), key=lambda made: made.slot.group_id)
    assert (first.first_version, first.last_version) == versions
    assert (second.first_version, second.last_version) == (1, 1)
    sampled = first.sequences[0].versions()[first.sequences[0].loss_mask == 1]
    assert (int(sampled[0]), int(sampled[-1])) == versions and first.turns == 2


def test_an_attempt_that_is_handed_back_has_its_files_again(make_settings: Make, tiny_folder: Path) -> None:
    """A policy comes while the second turn is sampled: the rest of it is another task, with a sandbox of its own."""
    settings = make_settings(
        model={"path": str(tiny_folder)}, rollout={"follow": "between_turns", "hand_back": "publish"}
    )
    codec = ChatCodec.open(str(tiny_folder))
    tokens = Tokens(codec.tokenizer, codec.stop_ids)
    task: Any = agentic(settings, 1)
    once = Call("bash", {"command": "echo run >> runs; head -c 9 /dev/urandom | od -An -tx1 | tee once"})
    seen = Call("bash", {"command": "cat once; wc -l < runs"})
    turns = says(tokens, [written(tokens, task, call) for call in (once, seen)])
    contexts: list[int] = []
    """Of the second turn, when it was asked for."""

    def answer(request: GenerateRequest) -> Ids:
        turn = int(request.request_id.rpartition("/")[2])
        whole = turns(turn, request) if turn < 2 else says(tokens, ["done"])(0, request)
        return whole[len(request.prompt_ids) - contexts[0] :] if turn == 1 else whole

    def slow_once(request: GenerateRequest) -> float:
        if not request.request_id.endswith("/1"):
            return 0.0
        contexts.append(len(request.prompt_ids))
        return 600.0 if len(contexts) == 1 else 0.0

    async def body() -> tuple[Trajectory, Any]:
        bench, stop = Bench(settings), asyncio.Event()
        engine = GatedEngine(InstantEngine(answer, slow_once), "between_turns")
        service = asyncio.create_task(RolloutService(settings, "rollout-0", engine, codec).run(stop))
        weights = tiny_folder / "model.safetensors"
        limits = Limits(turns=4, context_tokens=4000, wall_seconds=1000.0)
        try:
            await bench.announce(make_policy(settings, weights, 0))
            await bench.schedule(agentic(settings, 1, samples=1, limits=limits))
            await bench.heartbeat(
                lambda beat: beat.gauges.get("sampled_tokens", 0) > 0 and beat.gauges["batch_running"] == 1
            )
            await bench.announce(make_policy(settings, weights, 1))
            topic = bench.names.tasks("single_turn", "normal")
            records = await bench.read(topic, lambda seen: len(seen) >= 2, 60.0)
            (made,) = await bench.trajectories(1, timeout_s=60.0)
            return made, records[-1][0]
        finally:
            stop.set()
            await service
            await bench.close()

    made, handed = asyncio.run(body())
    assert handed.continuation.workspace is not None
    assert [call.turn for call in handed.continuation.tool_turns[0].calls] == [0]
    assert (made.stop_reason, made.turns, made.final_answer) == ("stop", 3, "done")
    first, second = (call.result for call in made.tool_calls)
    assert second == f"{first}\n1"
    assert made.artifacts["workspace/runs"] == "run\n"
