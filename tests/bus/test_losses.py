"""Offsets that fell out of the log: said aloud, never a silent jump."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from shared.bus.log_cursor import OffsetLostError
from shared.bus.reader import LogReader
from shared.bus.records import header
from shared.bus.topics import names
from shared.settings import Settings
from tests.bus.parts import (
    Seen,
    committed,
    dead_letters,
    index_of,
    producing,
    run,
    send_tasks,
    until,
    working,
)

Make = Callable[..., Settings]


def test_a_commit_below_retention_is_a_loud_loss_and_work_goes_on(make_settings: Make) -> None:
    settings = make_settings(bus={"partitions": 1})
    topic = names(settings).tasks("single_turn", "normal")

    async def test() -> None:
        seen, again = Seen(), Seen()
        async with producing(settings) as producer:
            await send_tasks(producer, settings, range(10))
            async with working(settings, producer, seen):
                await until(lambda: len(seen.finished) == 10, "ten records")
            assert committed(settings, topic) == {0: 10}
            await send_tasks(producer, settings, range(10, 30))
            delete_before(settings, topic, 25)
            async with working(settings, producer, again) as worker:
                await until(lambda: len(again.finished) == 5, "what is left")
                assert worker.stats().lost == 1
        assert len(again.order) == 5
        [letter] = dead_letters(settings)
        assert header(letter.headers, "error.type") == "OffsetLost"
        assert header(letter.headers, "origin") == f"{topic}/0/10"
        assert "15 records are lost to retention" in header(letter.headers, "error.message")
        assert json.loads(letter.value or b"") == {
            "topic": topic,
            "partition": 0,
            "first_lost": 10,
            "continues_at": 25,
        }

    run(test())


def test_a_reader_is_told_of_a_loss_once_and_goes_on_from_what_is_left(make_settings: Make) -> None:
    settings = make_settings(bus={"partitions": 1})
    topic = names(settings).tasks("single_turn", "normal")

    async def test() -> None:
        async with producing(settings) as producer:
            await send_tasks(producer, settings, range(20))
        delete_before(settings, topic, 12)
        reader = LogReader(settings, "learner", [topic], {(topic, 0): 5})
        with pytest.raises(OffsetLostError, match="7 records are lost to retention"):
            await reader.poll()
        got = []
        while not reader.at_end():
            got.extend(await reader.poll(0.5))
        assert [delivery.offset for delivery in got] == list(range(12, 20))
        assert reader.positions() == {(topic, 0): 20}
        await reader.close()

    run(test())


def test_a_reader_that_is_overtaken_by_retention_is_told(make_settings: Make) -> None:
    settings = make_settings(bus={"partitions": 1})
    topic = names(settings).tasks("single_turn", "normal")

    async def test() -> None:
        async with producing(settings) as producer:
            await send_tasks(producer, settings, range(5))
            reader = LogReader(settings, "learner", [topic])
            assert len(await reader.poll(2.0)) == 5
            reader.pause([topic])
            await reader.poll(0.2)
            await send_tasks(producer, settings, range(5, 50))
            delete_before(settings, topic, 40)
            reader.resume([topic])
            got = []
            with pytest.raises(OffsetLostError) as caught:
                while True:
                    got.extend(await reader.poll(0.5))
            assert (caught.value.wanted, caught.value.continues_at) == (5, 40)
            assert not got
            while not reader.at_end():
                got.extend(await reader.poll(0.5))
            assert sorted(delivery.offset for delivery in got) == list(range(40, 50))
            assert len({index_of(delivery) for delivery in got}) == 10
            await reader.close()

    run(test())


def test_an_offset_beyond_the_end_is_no_silent_wait(make_settings: Make) -> None:
    """A checkpoint of another broker's data: the log is shorter than it says."""
    settings = make_settings(bus={"partitions": 1})
    topic = names(settings).tasks("single_turn", "normal")

    async def test() -> None:
        async with producing(settings) as producer:
            await send_tasks(producer, settings, range(3))
        reader = LogReader(settings, "learner", [topic], {(topic, 0): 99})
        with pytest.raises(OffsetLostError, match="the log ends at 3"):
            await reader.open()
        assert len(await reader.poll(2.0)) == 3
        await reader.close()

    run(test())


def delete_before(settings: Settings, topic: str, offset: int) -> None:
    """What retention does, at once."""
    from kafka import TopicPartition

    from shared.bus.admin import admin_client

    with admin_client(settings.bus) as client:
        client.delete_records({TopicPartition(topic, 0): offset})
