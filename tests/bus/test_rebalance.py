"""Partitions that come and go: nothing lost, nothing done twice where there was time, nothing stuck."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shared.bus import client_quirks
from shared.bus.connect import consumer_options
from shared.bus.delivery import Delivery
from shared.bus.records import header
from shared.bus.subscriptions import Subscription, group_name
from shared.bus.topics import names
from shared.settings import Settings
from tests.brokers import Broker
from tests.bus.parts import Seen, producing, read_raw, run, send_tasks, until, working

Make = Callable[..., Settings]
REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["cooperative", "eager"])
def test_members_that_join_and_leave_share_the_work_without_doing_it_twice(
    make_settings: Make, protocol: str
) -> None:
    settings = make_settings(bus={"rebalance": protocol, "partitions": 4})

    async def test() -> None:
        async def short(index: int, delivery: Delivery[Any]) -> None:
            await asyncio.sleep(0.01)

        first, second = Seen(short), Seen(short)
        async with producing(settings) as producer:
            sent = 0
            async with working(settings, producer, first, "rollout-0") as one:
                await send_tasks(producer, settings, range(sent, sent := sent + 300))
                await until(lambda: len(first.finished) > 20, "the first at work")
                async with working(settings, producer, second, "rollout-1") as two:
                    await until(lambda: two.stats().partitions, "partitions of the second")
                    await send_tasks(producer, settings, range(sent, sent := sent + 300))
                    await until(lambda: len(second.finished) > 20, "the second at work")
                    assert one.stats().partitions + two.stats().partitions == 20
                await send_tasks(producer, settings, range(sent, sent := sent + 100))
                await until(lambda: len(first.finished) + len(second.finished) >= 700, "all records")
                await until(lambda: one.stats().partitions == 20, "everything back with the first")
        assert Counter(first.order + second.order) == Counter(range(700))

    run(test(), 60.0)


@pytest.mark.parametrize("protocol", ["cooperative", "eager"])
def test_members_share_every_topic_and_not_only_their_sum(make_settings: Make, protocol: str) -> None:
    """All work is in one topic of many, as most of a run is."""
    settings = make_settings(bus={"rebalance": protocol, "partitions": 2})

    async def test() -> None:
        first, second = Seen(), Seen()
        async with producing(settings) as producer, working(settings, producer, first, "rollout-0") as one:
            await until(lambda: one.stats().partitions == 10, "the first has all")
            async with working(settings, producer, second, "rollout-1") as two:
                await until(lambda: one.stats().partitions == two.stats().partitions == 5, "both are in")
                await send_tasks(producer, settings, range(200))
                await until(lambda: len(first.finished) + len(second.finished) >= 200, "all records")
                assert len(first.finished) > 30 < len(second.finished)

    run(test(), 60.0)


def test_a_full_member_that_gains_partitions_stays_within_its_buffer(make_settings: Make) -> None:
    settings = make_settings(bus={"partitions": 4, "drain_s": 0.5, "retry_delays_s": []})
    small = {
        "concurrency": 2,
        "buffer_records": 20,
        "subscriptions": [Subscription(names(settings).tasks("single_turn", "normal"))],
    }

    async def test() -> None:
        gate = asyncio.Event()

        async def wait(index: int, delivery: Delivery[Any]) -> None:
            await gate.wait()

        full, other = Seen(wait), Seen(wait)
        async with (
            producing(settings) as producer,
            working(settings, producer, full, "rollout-0", **small) as one,
        ):
            async with working(settings, producer, other, "rollout-1", **small) as two:
                await until(lambda: one.stats().partitions == two.stats().partitions == 2, "both are in")
                await send_tasks(producer, settings, range(2000))
                await until(lambda: one.stats().paused and two.stats().paused, "both are full")
                await asyncio.sleep(0.3)
                held = one.stats().buffered
            await until(lambda: one.stats().partitions == 4, "the partitions of the one that left")
            await asyncio.sleep(0.6)
            assert one.stats().buffered == held, "a paused member read the partitions it gained"
            gate.set()
            await until(lambda: len(set(full.finished) | set(other.finished)) == 2000, "all records")

    run(test(), 60.0)


def test_a_handler_that_outlives_the_drain_is_cut_off_and_done_elsewhere(make_settings: Make) -> None:
    settings = make_settings(bus={"drain_s": 0.2, "partitions": 2, "retry_delays_s": []})
    only = {"subscriptions": [Subscription(names(settings).tasks("single_turn", "normal"))]}

    async def test() -> None:
        async def hang(index: int, delivery: Delivery[Any]) -> None:
            await asyncio.sleep(3600)

        stuck, other = Seen(hang), Seen()
        async with (
            producing(settings) as producer,
            working(settings, producer, stuck, "rollout-0", concurrency=40, **only) as one,
        ):
            await send_tasks(producer, settings, range(40))
            await until(lambda: len(stuck.order) == 40, "all of it hanging in the first")
            async with working(settings, producer, other, "rollout-1", **only):
                await until(lambda: other.finished, "what moved to the second")
                await until(lambda: one.stats().in_flight == 40 - len(other.finished), "cut off here")
                assert 0 < one.stats().in_flight < 40
                assert not stuck.finished
                assert one.stats().failures == 0, "being cut off is no failed attempt"

    run(test(), 60.0)


@pytest.mark.slow
def test_killed_workers_lose_nothing(make_settings: Make, tmp_path: Path) -> None:
    """Workers are killed with -9 in the middle of it, again and again; every task still becomes a reward."""
    settings = make_settings(bus={"session_timeout_ms": 1000, "partitions": 4})
    topic = names(settings).rewards
    document = tmp_path / "settings.json"
    document.write_text(settings.model_dump_json())

    async def test() -> None:
        async with producing(settings) as producer:
            await send_tasks(producer, settings, range(800))
            with contextlib.ExitStack() as stack:
                processes = [stack.enter_context(process(document, f"rollout-{i}")) for i in range(2)]
                for round_ in range(3):
                    limit = time.monotonic() + 20
                    while len(results(settings, topic)) < 100 * (round_ + 1):
                        assert time.monotonic() < limit, f"no progress before kill {round_ + 1}"
                        await asyncio.sleep(0.1)
                    os.kill(processes[round_ % 2].pid, signal.SIGKILL)
                    processes[round_ % 2] = stack.enter_context(process(document, f"again-{round_}"))
                limit = time.monotonic() + 40
                while len(done := results(settings, topic)) < 800:
                    assert time.monotonic() < limit, f"only {len(done)} of 800 tasks were done"
                    await asyncio.sleep(0.2)
        assert done == {f"0-rl-{index:07d}" for index in range(800)}

    run(test(), 70.0)


def results(settings: Settings, topic: str) -> set[str]:
    return {header(record.headers, "group_id") for record in read_raw(settings, topic)}


@contextlib.contextmanager
def process(document: Path, name: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "tests.bus.crash_worker", str(document), name]
    running = subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield running
    finally:
        running.kill()
        running.wait()


def test_a_join_that_a_poll_gave_up_on_is_finished(make_settings: Make, broker: Broker) -> None:
    """The client quirk itself: without `finish_join` a member polled this briefly owns nothing for ever."""
    from kafka import KafkaConsumer

    settings = make_settings()
    for _ in range(3):
        consumer = KafkaConsumer(
            group_id=f"{group_name(settings, 'rollout')}-{time.monotonic_ns()}",
            **consumer_options(settings.bus, "test-join"),
        )
        try:
            consumer.subscribe([names(settings).rewards])
            limit = time.monotonic() + 10
            while not consumer.assignment():
                assert time.monotonic() < limit, "the member was assigned nothing"
                with contextlib.suppress(Exception):  # no offset yet: it is assigned then
                    consumer.poll(timeout_ms=2)
                client_quirks.finish_join(consumer)
        finally:
            consumer.close(autocommit=False)


def test_a_topic_that_is_not_there_ends_the_worker_with_the_mend(make_settings: Make) -> None:
    settings = make_settings(topics=False)

    async def test() -> None:
        from shared.errors import BusError

        async with producing(settings) as producer:
            with pytest.raises(BusError, match="does not exist: run `temper topics apply`"):
                async with working(settings, producer, Seen()) as worker:
                    await until(lambda: not worker.health(), "the end")

    run(test())
