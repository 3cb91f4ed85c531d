"""Attempts that are handed back: what was sampled is kept to the token, wherever and however often it is cut."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.rollout.chat import ChatCodec
from services.rollout.continuing import Course, OtherContextError, generation_of, joined, task_of, turn_of
from services.rollout.engines.base import GenerateRequest, Generation, Ids, runs_of
from services.rollout.engines.gated import GatedEngine
from services.rollout.engines.instant import InstantEngine
from services.rollout.service import RolloutService
from shared.contracts import Continuation, SampledTurn, Task, Trajectory, decode, encode, schema_header
from shared.settings import Settings
from tests.rollout.parts import Bench, make_policy, make_task

Make = Callable[..., Settings]
CONTEXT = np.arange(5, dtype=np.int32)


def made(ids: list[int], versions: list[int], stop: Any = "cut") -> Generation:
    logprobs = np.array([-0.25 * (token % 7) for token in ids], dtype=np.float32)
    return Generation(np.array(ids, dtype=np.int32), logprobs, runs_of(versions), stop)


@given(
    tokens=st.lists(st.tuples(st.integers(0, 99), st.integers(0, 3)), min_size=1, max_size=40), data=st.data()
)
def test_a_turn_cut_anywhere_is_the_turn_again(tokens: list[tuple[int, int]], data: st.DataObject) -> None:
    ids, versions = [t for t, _ in tokens], sorted(v for _, v in tokens)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=4)))
    course = Course()
    for start, end in itertools.pairwise([0, *cuts, len(ids)]):
        part = made(ids[start:end], versions[start:end], "stop" if end == len(ids) else "cut")
        begun = course.begun(0, CONTEXT)
        course = Course(course.before)
        course.made(part if begun is None else joined(begun, part), CONTEXT)
        rest = course.handed_back()
        course = Course(Continuation.model_validate_json(rest.model_dump_json()))
    whole = course.begun(0, CONTEXT)
    assert whole is not None and course.hops == len(cuts) + 1
    np.testing.assert_array_equal(whole.token_ids, ids)
    np.testing.assert_array_equal(whole.logprobs, made(ids, versions).logprobs)
    assert whole.versions == runs_of(versions)


def test_another_context_is_not_gone_on_from() -> None:
    course = Course()
    course.made(made([1, 2], [0, 0], "stop"), CONTEXT)
    course.made(made([3], [1]), CONTEXT + 1)
    rest = Course(course.handed_back())
    assert rest.begun(0, CONTEXT) is not None and rest.begun(1, CONTEXT + 1) is not None
    with pytest.raises(OtherContextError):
        rest.begun(1, CONTEXT)
    assert rest.again().hops == 1 and rest.again().begun(0, CONTEXT) is None


def test_what_cannot_be_kept_starts_again() -> None:
    course = Course()
    course.made(made([1, 2], [0, 0]), CONTEXT)
    course.lost = "somebody says so"
    assert course.handed_back() == Continuation(hops=1)


def test_the_rest_is_a_task_of_its_slot_that_no_older_policy_takes(settings: Settings) -> None:
    task = make_task(settings, samples=4, sampling={"enough": 3}, min_policy_version=1)
    rest = Continuation(hops=1, turns=(turn_of(made([1, 2], [2, 3])),), context_sha256="00")
    sent = decode_task(task_of(task, task.slots()[2], rest))
    assert sent.slots() == (task.slots()[2],) and sent.min_policy_version == 3
    assert (sent.attempt, sent.deadline_ms, sent.created_ms) == (
        task.attempt,
        task.deadline_ms,
        task.created_ms,
    )
    assert sent.continuation is not None
    np.testing.assert_array_equal(generation_of(sent.continuation.turns[0]).token_ids, [1, 2])


def decode_task(task: Task) -> Task:
    """As it comes from its topic."""
    read = decode(schema_header(task), encode(task))
    assert isinstance(read, Task)
    return read


@pytest.mark.parametrize(
    "turns",
    [
        {"token_ids": [1], "logprobs": [0.0, 0.0], "versions": [1], "stop_reason": "cut"},
        {"token_ids": [], "logprobs": [], "versions": [], "stop_reason": "cut"},
    ],
)
def test_a_turn_of_other_lengths_or_without_tokens_is_refused(turns: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="one size"):
        SampledTurn(**turns)


@pytest.fixture
def settings(make_settings: Make, tiny_folder: Path) -> Settings:
    return make_settings(model={"path": str(tiny_folder)}, bus={"drain_s": 1.0, "partitions": 1})


def service_of(
    settings: Settings, name: str, answer: Callable[[GenerateRequest], Ids], latency: Any
) -> RolloutService:
    codec = ChatCodec.open(settings.model.path)
    engine = GatedEngine(InstantEngine(answer, latency), settings.rollout.follow)
    return RolloutService(settings, name, engine, codec)


def test_a_shutdown_hands_back_and_another_process_goes_on(settings: Settings, tiny_folder: Path) -> None:
    """Slot 0 ends in the first process, slot 1 is cut in the middle there and ends in the second."""
    codec = ChatCodec.open(str(tiny_folder))
    answer = np.array([*range(10, 50), min(codec.stop_ids)], dtype=np.int32)
    prompt = len(codec.prompt(make_task(settings).messages).ids)

    def rest(request: GenerateRequest) -> Ids:
        """From where the context ends."""
        return answer[len(request.prompt_ids) - prompt :]

    def slow(request: GenerateRequest) -> float:
        return 2.0 if request.request_id.endswith("/1") else 0.01

    async def body() -> list[Trajectory]:
        bench, stop = Bench(settings), asyncio.Event()
        try:
            await bench.announce(make_policy(settings, tiny_folder / "model.safetensors", 0))
            first = asyncio.create_task(service_of(settings, "rollout-0", rest, slow).run(stop))
            await bench.schedule(make_task(settings, sampling={"max_tokens": 64}))
            await bench.trajectories(1)
            stop.set()
            await first
            topic = bench.names.tasks("single_turn", "normal")
            records = await bench.read(topic, lambda seen: len(seen) >= 2)
            handed = records[-1][0]
            assert isinstance(handed, Task) and handed.continuation is not None
            assert handed.slots()[0].sample_index == 1
            assert 0 < handed.continuation.turns[0].token_ids.size < len(answer)
            await bench.announce(make_policy(settings, tiny_folder / "model.safetensors", 1))
            stop = asyncio.Event()
            second = asyncio.create_task(service_of(settings, "rollout-1", rest, 0.01).run(stop))
            sent = await bench.trajectories(2)
            stop.set()
            await second
            return sent
        finally:
            await bench.close()

    ended, continued = asyncio.run(body())
    assert (ended.slot.sample_index, continued.slot.sample_index) == (0, 1)
    assert (ended.worker_id, continued.worker_id) == ("rollout-0", "rollout-1")
    sequence = continued.sequences[0]
    np.testing.assert_array_equal(sequence.token_ids[sequence.loss_mask.astype(bool)], answer)
    assert [span.version for span in sequence.version_spans] == [-1, 0, 1]
    assert (continued.first_version, continued.last_version, continued.stop_reason) == (0, 1, "stop")


def test_a_new_policy_does_not_wait_for_a_long_answer(make_settings: Make, tiny_folder: Path) -> None:
    """`hand_back = "publish"` where a policy goes in between turns: the answer goes on, under the new one."""
    settings = make_settings(
        model={"path": str(tiny_folder)}, rollout={"follow": "between_turns", "hand_back": "publish"}
    )
    codec = ChatCodec.open(str(tiny_folder))
    answer = np.array([*range(10, 50), min(codec.stop_ids)], dtype=np.int32)
    prompt = len(codec.prompt(make_task(settings).messages).ids)

    def slow_at_first(request: GenerateRequest) -> float:
        return 60.0 if len(request.prompt_ids) == prompt else 0.01

    def rest(request: GenerateRequest) -> Ids:
        return answer[len(request.prompt_ids) - prompt :]

    async def body() -> Trajectory:
        bench, stop = Bench(settings), asyncio.Event()
        try:
            await bench.announce(make_policy(settings, tiny_folder / "model.safetensors", 0))
            service = service_of(settings, "rollout-0", rest, slow_at_first)
            running = asyncio.create_task(service.run(stop))
            await bench.schedule(make_task(settings, samples=1, sampling={"max_tokens": 64}))
            await bench.heartbeat(lambda beat: beat.gauges.get("batch_running", 0) == 1)
            await asyncio.sleep(3.0)
            await bench.announce(make_policy(settings, tiny_folder / "model.safetensors", 1))
            (made,) = await bench.trajectories(1)
            stop.set()
            await running
            assert isinstance(made, Trajectory)
            return made
        finally:
            await bench.close()

    made = asyncio.run(body())
    sequence = made.sequences[0]
    np.testing.assert_array_equal(sequence.token_ids[sequence.loss_mask.astype(bool)], answer)
    assert [span.version for span in sequence.version_spans] == [-1, 0, 1]
