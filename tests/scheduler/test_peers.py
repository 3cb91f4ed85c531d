"""A run that does not move says who is gone, and what the others wait for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from services.scheduler.peers import peers_in_words
from services.scheduler.service import SchedulerService
from shared.contracts import Heartbeat
from shared.errors import StalledError
from shared.settings import Settings
from tests.scheduler.test_service import Others

NOW = 1_000_000


def beat(worker_id: str, ago_s: float = 0.0, **changes: Any) -> Heartbeat:
    fields = {
        "run_id": "r",
        "service": worker_id.split("-", maxsplit=1)[0],
        "state": "idle",
        "created_ms": NOW - int(ago_s * 1000),
    }
    return Heartbeat.model_validate({"worker_id": worker_id, **fields, **changes})


@pytest.mark.parametrize(
    ("beats", "said"),
    [
        ([beat("rollout-0"), beat("verifier-0"), beat("learner-0")], ""),
        (
            [beat("rollout-0"), beat("verifier-0"), beat("learner-0", waits_for="2 of 4 groups")],
            "learner-0 waits for 2 of 4 groups",
        ),
        (
            [beat("rollout-1", 70), beat("rollout-0", 65), beat("verifier-0"), beat("learner-0", 9)],
            "no rollout is alive (rollout-0 last heard of 65 s ago)",
        ),
        (
            [beat("rollout-0", state="failed"), beat("learner-0", 3, state="stopped")],
            "no rollout is alive (rollout-0 failed 0 s ago); no verifier is alive (none was ever heard of); "
            "no learner is alive (learner-0 stopped 3 s ago)",
        ),
    ],
)
def test_who_is_gone_and_what_the_living_wait_for(beats: list[Heartbeat], said: str) -> None:
    assert peers_in_words(beats, NOW, heartbeat_s=1.0) == said


def test_a_run_whose_rollouts_died_ends_with_that_as_the_reason(
    make_settings: Callable[..., Settings],
) -> None:
    settings = make_settings(
        scheduler={"stall_s": 2.0}, evaluation={"at_start": False}, telemetry={"heartbeat_s": 0.1}
    )

    async def body() -> None:
        others = Others(settings)
        name, now = settings.run.name, int(time.time() * 1000)
        for one in (
            beat("rollout-0", run_id=name, created_ms=now - 5000),
            beat("rollout-0", run_id="another", created_ms=now + 60_000),
            beat("verifier-0", run_id=name, created_ms=now + 60_000),
            beat("learner-0", run_id=name, created_ms=now + 60_000, waits_for="2 of 2 groups for step 1"),
        ):
            await others.producer.send(others.names.workers, one)
        await others.publish(0)
        words = (
            r"no progress for \d s, waiting for \d+ groups in flight at step 0; no rollout is alive "
            r"\(rollout-0 last heard of \d+ s ago\); learner-0 waits for 2 of 2 groups for step 1; "
        )
        with pytest.raises(StalledError, match=words):
            await asyncio.wait_for(SchedulerService(settings, "scheduler-0").run(asyncio.Event()), 20)
        await others.close()

    asyncio.run(body())
