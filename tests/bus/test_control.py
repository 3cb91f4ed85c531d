"""Heartbeats and control: who is alive, and when a run is over."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable

import pytest

from shared.bus.control import ControlWatcher
from shared.bus.heartbeat import HeartbeatLoop
from shared.bus.topics import names
from shared.contracts import Control, Heartbeat, decode
from shared.settings import Settings
from tests.bus.parts import producing, read_raw, run, until

Make = Callable[..., Settings]


def test_a_service_learns_of_the_end_and_of_groups_given_up(
    make_settings: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shared.bus.control._POLL_S", 0.1)
    settings = make_settings()
    topic = names(settings).control

    async def test() -> None:
        async with producing(settings) as producer:
            await producer.send(topic, Control(run_id="another", kind="end", reason="not ours"))
            await producer.send(topic, Control(run_id=settings.run.name, kind="abandon", groups=("g1", "g2")))
            watcher = ControlWatcher(settings, "rollout")
            watching = asyncio.create_task(watcher.watch())
            await asyncio.wait_for(watcher.caught_up.wait(), 15)
            assert watcher.abandoned == {"g1", "g2"}
            assert not watcher.ended.is_set(), "another run's end is not ours"
            await producer.send(topic, Control(run_id=settings.run.name, kind="end", reason="all steps done"))
            await asyncio.wait_for(watcher.ended.wait(), 15)
            assert watcher.reason == "all steps done"
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            late = ControlWatcher(settings, "learner")
            stop = asyncio.Event()
            following = asyncio.create_task(late.watch(stop))
            await asyncio.wait_for(late.ended.wait(), 15)
            stop.set()
            await asyncio.wait_for(following, 5)

    run(test(), 60.0)


def test_heartbeats_come_every_interval_and_once_at_the_end(make_settings: Make) -> None:
    settings = make_settings()
    topic = names(settings).workers

    async def test() -> None:
        state = "idle"

        def make() -> Heartbeat:
            return Heartbeat(
                run_id=settings.run.name,
                worker_id="rollout-0",
                service="rollout",
                state=state,  # type: ignore[arg-type]
            )

        async with producing(settings) as producer:
            stop = asyncio.Event()
            beating = asyncio.create_task(HeartbeatLoop(producer, topic, make, 0.05).run(stop))
            await asyncio.sleep(0.5)
            state = "stopped"
            stop.set()
            await asyncio.wait_for(beating, 5)

    run(test())
    beats = [decode("temper.heartbeat/1", record.value or b"") for record in read_raw(settings, topic)]
    assert 3 <= len(beats) <= 14
    assert beats[-1].state == "stopped"  # type: ignore[attr-defined]
    times = [beat.created_ms for beat in beats]  # type: ignore[attr-defined]
    assert times == sorted(times) and times[0] > time.time() * 1000 - 60_000, (
        "no time: it counts as long past"
    )
    assert {beat.pid for beat in beats} == {os.getpid()}  # type: ignore[attr-defined]


def test_a_beat_that_cannot_be_sent_does_not_end_the_loop(make_settings: Make) -> None:
    settings = make_settings()

    async def test() -> None:
        made = 0

        def make() -> Heartbeat:
            nonlocal made
            made += 1
            return Heartbeat(run_id="r", worker_id="w", service="rollout", state="idle")

        async with producing(settings) as producer:
            await producer.close()
            stop = asyncio.Event()
            beating = asyncio.create_task(HeartbeatLoop(producer, "x", make, 0.05).run(stop))
            await until(lambda: made > 3, "beats after a failed one")
            stop.set()
            await asyncio.wait_for(beating, 5)

    run(test())
