"""An oversampled task: enough attempts to their end, the others cut short and still told."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np

from services.rollout.chat import ChatCodec
from services.rollout.engines.base import GenerateRequest
from services.rollout.engines.cut import Cut, unless_cut
from services.rollout.engines.instant import InstantEngine
from services.rollout.single_turn import SingleTurn
from shared.contracts import Trajectory
from shared.telemetry.tracing import Tracing
from tests.rollout.engines.subjects import settings_of
from tests.rollout.parts import make_task


def attempts(folder: Path, latency: Any, **sampling: Any) -> list[Trajectory]:
    """What is sent of one task, in order. Answers are 20 tokens and the end."""
    codec = ChatCodec.open(str(folder))
    answer = np.array([5] * 20 + [min(codec.stop_ids)], dtype=np.int32)
    engine = InstantEngine(lambda request: answer, latency)
    sent: list[Trajectory] = []

    async def send(trajectory: Trajectory) -> None:
        sent.append(trajectory)

    async def served(version: int) -> int:
        return 0

    async def body() -> None:
        await engine.load_policy(folder, 3, None)
        work = SingleTurn(engine, codec, Tracing.off(), 0, "rollout-0", served)
        await work.attempt(make_task(settings_of(folder), sampling={"max_tokens": 64, **sampling}), send)

    asyncio.run(body())
    return sent


def slow_last(request: GenerateRequest) -> float:
    """Sample 3 takes a minute, the others no time to speak of."""
    return 60.0 if request.request_id.endswith("/3") else 0.01


def test_what_still_runs_is_cut_when_enough_have_ended(tiny_folder: Path) -> None:
    sent = attempts(tiny_folder, slow_last, samples=4, group_size=4, enough=3)
    assert [t.stop_reason for t in sent] == ["stop", "stop", "stop", "cancelled"]
    assert {t.slot.sample_index for t in sent} == {0, 1, 2, 3}
    assert len({t.trajectory_id for t in sent}) == 4


def test_tokens_that_were_sampled_before_the_cut_are_in_the_record(tiny_folder: Path) -> None:
    def latency(request: GenerateRequest) -> float:
        return 4.0 if request.request_id.endswith("/1") else 2.0

    ended, cut = attempts(tiny_folder, latency, samples=2, group_size=2, enough=1)
    assert (ended.stop_reason, cut.stop_reason) == ("stop", "cancelled")
    assert 1 <= cut.sampled_tokens() < ended.sampled_tokens()
    assert (cut.first_version, cut.last_version) == (3, 3)


def test_without_the_word_everything_comes_to_its_end(tiny_folder: Path) -> None:
    sent = attempts(tiny_folder, 0.01, samples=4, group_size=4)
    assert [t.stop_reason for t in sent] == ["stop"] * 4


def test_work_that_does_not_heed_a_cut_is_dropped_after_the_grace() -> None:
    async def body() -> None:
        cut, ended = Cut(), asyncio.Event()

        async def deaf() -> str:
            try:
                await asyncio.sleep(60)
            finally:
                ended.set()
            return "whole"

        asyncio.get_running_loop().call_later(0.01, cut.ask, "surplus")
        assert await unless_cut(cut, deaf(), grace_s=0.01) is None
        assert ended.is_set()

    asyncio.run(body())
