"""The log reader: exact positions, pauses, cancellation, and what it does with what it cannot read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from shared.bus.reader import LogReader
from shared.bus.records import header
from shared.bus.topics import names
from shared.contracts import Heartbeat
from shared.errors import BusError
from shared.settings import Settings
from tests.bus.parts import (
    dead_letters,
    index_of,
    producing,
    reward,
    run,
    send_bytes,
    send_tasks,
)

Make = Callable[..., Settings]


async def read_to_end(reader: LogReader, most: int = 500) -> list[int]:
    got: list[int] = []
    while not reader.at_end():
        got.extend(index_of(delivery) for delivery in await reader.poll(0.3, most))
    return got


def test_positions_name_exactly_what_was_returned_and_a_restart_continues_there(make_settings: Make) -> None:
    settings = make_settings(bus={"partitions": 3})
    topic = names(settings).tasks("single_turn", "normal")

    async def test() -> None:
        async with producing(settings) as producer:
            await send_tasks(producer, settings, range(40))
        got: list[int] = []
        positions: dict[tuple[str, int], int] = {}
        for _ in range(20):
            reader = LogReader(settings, "learner", [topic], positions)
            batch = await reader.poll(3.0, max_records=7)
            got.extend(index_of(delivery) for delivery in batch)
            assert len(batch) <= 7
            positions = reader.positions()
            assert sum(positions.values()) == len(got)
            await reader.close()
            if len(got) == 40:
                break
        assert sorted(got) == list(range(40))

    run(test())


def test_earliest_end_and_lag(make_settings: Make) -> None:
    settings = make_settings()
    topic = names(settings).tasks("single_turn", "normal")

    async def test() -> None:
        async with producing(settings) as producer:
            await send_tasks(producer, settings, range(10))
            late = LogReader(settings, "tools", [topic], "end")
            await late.open()
            early = LogReader(settings, "tools", [topic])
            await early.open()
            assert early.lag() == 10
            assert not early.at_end()
            assert sorted(await read_to_end(early)) == list(range(10))
            assert early.lag() == 0
            assert late.at_end()
            await send_tasks(producer, settings, [10])
            assert [index_of(d) for d in await late.poll(5.0)] == [10]
            assert early.last_answer_s() < 5
            await late.close()
            await early.close()

    run(test())


def test_a_paused_topic_keeps_silent_and_misses_nothing(make_settings: Make) -> None:
    settings = make_settings()
    low, high = (names(settings).tasks("single_turn", name) for name in ("low", "high"))

    async def test() -> None:
        async with producing(settings) as producer:
            await send_tasks(producer, settings, range(50), "low")
            await send_tasks(producer, settings, range(50, 100), "high")
            reader = LogReader(settings, "learner", [low, high])
            first = await reader.poll(3.0, max_records=5)
            reader.pause([low])
            got = []
            for _ in range(8):
                got.extend(await reader.poll(0.1, max_records=20))
            assert {delivery.topic for delivery in got} <= {high}
            await send_tasks(producer, settings, range(100, 120), "low")
            reader.resume([low])
            while len(first) + len(got) < 120:
                got.extend(await reader.poll(2.0))
            assert sorted(index_of(delivery) for delivery in [*first, *got]) == list(range(120))
            await reader.close()

    run(test())


def test_a_cancelled_poll_loses_nothing(make_settings: Make) -> None:
    settings = make_settings(bus={"partitions": 1})
    topic = names(settings).tasks("single_turn", "normal")

    async def test() -> None:
        async with producing(settings) as producer:
            reader = LogReader(settings, "learner", [topic])
            await reader.open()
            polling = asyncio.create_task(reader.poll(5.0))
            await asyncio.sleep(0.3)
            polling.cancel()
            with pytest.raises(asyncio.CancelledError):
                await polling
            await send_tasks(producer, settings, range(5))
            got: list[int] = []
            while len(got) < 5:
                got.extend(index_of(delivery) for delivery in await reader.poll(2.0))
            assert got == sorted(got)
            assert reader.positions() == {(topic, 0): 5}
            await reader.close()

    run(test())


def test_what_cannot_be_read_is_buried_and_passed_over(make_settings: Make) -> None:
    settings = make_settings(bus={"partitions": 1})
    topic = names(settings).rewards

    async def test() -> None:
        async with producing(settings) as producer:
            await producer.send(topic, reward(settings, 0))
            send_bytes(settings, topic, b"\xff{", [("schema", b"temper.reward/1")])
            send_bytes(settings, topic, b"{}", [("schema", b"temper.reward/7")])
            await producer.send(topic, reward(settings, 1))
            reader = LogReader(settings, "learner", [topic], producer_for_dead=producer)
            got = []
            while not reader.at_end():
                got.extend(await reader.poll(0.3))
            assert [delivery.offset for delivery in got] == [0, 3]
            assert reader.undecodable == 2
            assert reader.positions() == {(topic, 0): 4}
            await reader.close()
            quiet = LogReader(settings, "tools", [topic])
            assert len(await quiet.poll(3.0)) == 2
            assert quiet.undecodable == 2
            await quiet.close()
        first, second = dead_letters(settings, "learner")
        assert first.value == b"\xff{"
        assert header(first.headers, "error.type") == "ContractError"
        assert header(second.headers, "error.type") == "UnknownVersionError"
        assert header(second.headers, "origin") == f"{topic}/0/2"

    run(test())


def test_a_burial_that_fails_is_tried_again_before_anything_moves(make_settings: Make) -> None:
    from shared.bus import admin
    from tests.bus.test_failures import limit_topic

    settings = make_settings(bus={"partitions": 1})
    topic = names(settings).rewards
    limit_topic(settings, names(settings).dead("learner"), 100)

    async def test() -> None:
        async with producing(settings) as producer:
            send_bytes(settings, topic, b"{bad", [("schema", b"temper.reward/1")])
            await producer.send(topic, reward(settings, 1))
            reader = LogReader(settings, "learner", [topic], producer_for_dead=producer)
            for _ in range(2):
                with pytest.raises(BusError):
                    await reader.poll(3.0)
                assert reader.positions() == {(topic, 0): 0}
            admin.apply(settings)
            await asyncio.sleep(0.3)
            assert len(await reader.poll(3.0)) == 1
            assert reader.positions() == {(topic, 0): 2}
            await reader.close()
        assert len(dead_letters(settings, "learner")) == 1

    run(test())


def test_a_large_body_is_fetched_by_its_ticket(make_settings: Make) -> None:
    settings = make_settings(bus={"claim_check_bytes": 2048})
    topic = names(settings).rewards

    async def test() -> None:
        async with producing(settings) as producer:
            await producer.send(topic, reward(settings, 1, size=500_000))
        reader = LogReader(settings, "learner", [topic])
        [delivery] = await reader.poll(3.0)
        assert delivery.message == reward(settings, 1, size=500_000)
        assert delivery.size < 1000
        await reader.close()

    run(test())


def test_compacted_gaps_at_the_end_do_not_keep_it_from_the_end(make_settings: Make) -> None:
    """Many versions of one key: whatever compaction has removed, the end is reached."""
    settings = make_settings()
    topic = names(settings).workers

    async def test() -> None:
        async with producing(settings) as producer:
            for number in range(30):
                beat = Heartbeat(
                    run_id=settings.run.name,
                    worker_id="w",
                    service="rollout",
                    state="idle",
                    processed=number,
                )
                await producer.send(topic, beat)
        reader = LogReader(settings, "tools", [topic])
        last = None
        while not reader.at_end():
            for delivery in await reader.poll(0.3):
                last = delivery.message
        assert isinstance(last, Heartbeat)
        assert last.processed == 29
        await reader.close()

    run(test())


def test_a_topic_that_is_not_there_is_named(make_settings: Make) -> None:
    settings = make_settings(topics=False)

    async def test() -> None:
        reader = LogReader(settings, "tools", [names(settings).rewards])
        with pytest.raises(BusError, match="does not exist: run `temper topics apply`"):
            await reader.poll()
        await reader.close()

    run(test())


def test_a_backlog_is_read_from_all_partitions_at_once(make_settings: Make) -> None:
    """A batch larger than a fetch is sent only when no other partition has anything: none of ours may be."""
    settings = make_settings(bus={"partitions": 4})
    topic = names(settings).rewards

    async def test() -> None:
        async with producing(settings) as producer:
            # The first send connects; the rest queue up behind it, so that batches get as large as they may.
            await producer.send(topic, reward(settings, 0))
            await asyncio.gather(
                *(producer.send(topic, reward(settings, index, 4000)) for index in range(2000))
            )
        reader = LogReader(settings, "learner", [topic])
        read = [record for _ in range(2) for record in await reader.poll(5.0, max_records=1_000_000)]
        await reader.close()
        assert {delivery.partition for delivery in read} == {0, 1, 2, 3}
        assert len(read) < 2001, "everything came at once: it says nothing about batches"

    run(test())
