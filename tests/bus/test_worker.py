"""The worker loop when all goes well: every record once, in fair order, within limits, committed when finished."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from shared.bus.delivery import Delivery
from shared.bus.subscriptions import Subscription
from shared.bus.topics import names
from shared.settings import Settings
from tests.bus.parts import (
    Seen,
    committed,
    make_worker,
    producing,
    run,
    send_tasks,
    until,
    working,
)

Make = Callable[..., Settings]


def test_work_queued_before_the_first_start_is_done_once_and_committed(make_settings: Make) -> None:
    settings = make_settings()

    async def test() -> None:
        seen, again = Seen(), Seen()
        async with producing(settings) as producer:
            await send_tasks(producer, settings, range(300))
            async with working(settings, producer, seen) as worker:
                await until(lambda: len(seen.finished) == 300, "300 records")
                await until(lambda: worker.stats().in_flight == 0, "nothing in flight")
                assert worker.health()
            async with working(settings, producer, again) as worker:
                await send_tasks(producer, settings, [300])
                await until(lambda: again.finished, "the record sent after the restart")
            assert again.finished == [300], "finished records were delivered again"
        assert Counter(seen.order) == Counter(range(300))
        topic = names(settings).tasks("single_turn", "normal")
        assert sum(committed(settings, topic).values()) == 301

    run(test())


def test_a_failed_commit_order_never_passes_an_unfinished_record(make_settings: Make) -> None:
    """One record hangs while all others finish; after a stop it alone is delivered again."""
    settings = make_settings(bus={"partitions": 1, "drain_s": 0.3})

    async def test() -> None:
        async def hang(index: int, delivery: Delivery[Any]) -> None:
            if index == 5:
                await asyncio.sleep(3600)

        seen, again = Seen(hang), Seen()
        async with producing(settings) as producer:
            for index in range(60):
                await send_tasks(producer, settings, [index])
            async with working(settings, producer, seen):
                await until(lambda: len(seen.finished) == 59, "59 of 60 records")
            topic = names(settings).tasks("single_turn", "normal")
            assert committed(settings, topic) == {0: 5}
            async with working(settings, producer, again):
                await until(lambda: again.finished, "the unfinished record")
                await send_tasks(producer, settings, [60])
                await until(lambda: 60 in again.finished, "the next record")
        assert again.order == [5, 60], "records finished ahead of the prefix were done again"

    run(test())


def test_high_goes_first_and_low_is_not_starved(make_settings: Make) -> None:
    settings = make_settings(bus={"partitions": 1})

    async def test() -> None:
        gate = asyncio.Event()

        async def wait_for_all(index: int, delivery: Delivery[Any]) -> None:
            await gate.wait()

        seen = Seen(wait_for_all)
        async with producing(settings) as producer:
            await asyncio.gather(
                send_tasks(producer, settings, range(100), "high"),
                send_tasks(producer, settings, range(100, 200), "normal"),
                send_tasks(producer, settings, range(200, 300), "low"),
            )
            async with working(settings, producer, seen, concurrency=1) as worker:
                await until(lambda: worker.stats().buffered >= 299, "everything buffered")
                gate.set()
                await until(lambda: len(seen.finished) == 300, "300 records")
        first = Counter("high" if i < 100 else "normal" if i < 200 else "low" for i in seen.order[1:61])
        assert 36 <= first["high"] <= 44
        assert 12 <= first["normal"] <= 18
        assert 4 <= first["low"] <= 7

    run(test())


@pytest.mark.slow
def test_at_most_so_many_handlers_run_and_buffers_are_bounded(make_settings: Make) -> None:
    settings = make_settings(bus={"partitions": 1})

    async def test() -> None:
        running = most = 0
        release = asyncio.Event()

        async def handler(delivery: Delivery[Any]) -> None:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await release.wait()
            running -= 1

        async with producing(settings) as producer:
            await send_tasks(producer, settings, range(4000))
            async with working(settings, producer, handler, concurrency=5, buffer_records=50) as worker:
                await until(lambda: worker.stats().paused, "the topic paused for its full buffer")
                await asyncio.sleep(0.5)
                assert most == 5
                assert worker.stats().buffered < 2500, "back-pressure does not hold"
                assert worker.stats().partitions == 5, "a full worker lost its membership"
                release.set()
                await until(lambda: worker.stats().processed == 4000, "the rest after the pause")

    run(test())


def test_messages_of_other_runs_are_finished_unseen(make_settings: Make) -> None:
    settings = make_settings()
    other = settings.model_copy(update={"run": settings.run.model_copy(update={"name": "other"})})

    async def test() -> None:
        seen = Seen()
        async with producing(settings) as producer, producing(other) as foreign:
            await send_tasks(foreign, other, range(20))
            await send_tasks(producer, settings, range(20, 40))
            accept = lambda headers: headers.run_id == settings.run.name  # noqa: E731
            async with working(settings, producer, seen, accept=accept) as worker:
                await until(lambda: worker.stats().processed == 40, "all 40 records")
                assert worker.stats().skipped == 20
        assert sorted(seen.order) == list(range(20, 40))

    run(test())


@pytest.mark.slow
def test_a_job_longer_than_the_session_is_not_taken_away(make_settings: Make) -> None:
    settings = make_settings(bus={"session_timeout_ms": 1000})

    async def test() -> None:
        async def long(index: int, delivery: Delivery[Any]) -> None:
            await asyncio.sleep(1.8)

        seen = Seen(long)
        async with producing(settings) as producer:
            await send_tasks(producer, settings, range(2))
            async with (
                working(settings, producer, seen, "rollout-0", concurrency=1),
                working(settings, producer, seen, "rollout-1", concurrency=1),
            ):
                await until(lambda: len(seen.finished) == 2, "two long jobs")
        assert sorted(seen.order) == [0, 1]

    run(test())


def test_a_stop_lets_running_handlers_finish_before_the_group_is_left(make_settings: Make) -> None:
    settings = make_settings(bus={"retry_delays_s": []})
    only = {"subscriptions": [Subscription(names(settings).tasks("single_turn", "normal"))]}

    async def test() -> None:
        async def slow(index: int, delivery: Delivery[Any]) -> None:
            await asyncio.sleep(0.3)

        first, second = Seen(slow), Seen()
        async with producing(settings) as producer:
            await send_tasks(producer, settings, range(4))
            async with working(settings, producer, second, "rollout-1", **only) as other:
                await until(lambda: len(second.finished) == 4, "both partitions with the second worker")
                # The first joins while the second has everything; records sent then are shared.
                async with working(settings, producer, first, "rollout-0", **only) as worker:
                    await until(
                        lambda: worker.stats().partitions == other.stats().partitions == 1, "one each"
                    )
                    await send_tasks(producer, settings, range(100, 140))
                    await until(lambda: first.order, "a running handler")
                started = list(first.order)
                assert first.finished == started, "a handler was cut off although there was time"
                await until(lambda: len(first.finished) + len(second.finished) == 44, "all records")
                await asyncio.sleep(0.5)
        assert Counter(first.order + second.order) == Counter([*range(4), *range(100, 140)])

    run(test())


def test_a_stop_is_bounded_and_what_was_cut_off_comes_again(make_settings: Make) -> None:
    settings = make_settings(bus={"drain_s": 0.3})

    async def test() -> None:
        async def hang(index: int, delivery: Delivery[Any]) -> None:
            await asyncio.sleep(3600)

        seen, again = Seen(hang), Seen()
        async with producing(settings) as producer:
            await send_tasks(producer, settings, [0])
            worker = make_worker(settings, producer, seen)
            stop = asyncio.Event()
            running = asyncio.create_task(worker.run(stop))
            await until(lambda: seen.order, "the hanging handler")
            stop.set()
            await asyncio.wait_for(running, 3.0)
            async with working(settings, producer, again):
                await until(lambda: again.finished == [0], "the record that was cut off")

    run(test())
