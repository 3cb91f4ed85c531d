"""A broker that crashes, freezes or is not there: clients recover, and say how it stands meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from pathlib import Path

import pytest

from shared.bus.connect import await_broker, await_topics
from shared.bus.producer import producer_options
from shared.bus.reader import LogReader
from shared.bus.topics import names
from shared.errors import BusError, ConfigError, DependencyError
from shared.settings import BusSettings
from tests.brokers import Broker, free_port_pair, settings_for
from tests.bus.parts import Seen, producing, reward, run, send_tasks, until, working


@pytest.mark.slow
def test_after_a_crash_of_the_broker_everything_goes_on(own_broker: Broker, tmp_path: Path) -> None:
    """kill -9 and restart under a working producer, worker and reader: nothing acknowledged is lost."""
    settings = settings_for(own_broker, tmp_path, bus={"session_timeout_ms": 2000})
    topic = names(settings).rewards

    async def test() -> None:
        acknowledged: list[int] = []
        stop_sending = asyncio.Event()
        seen = Seen()

        async with producing(settings) as producer, working(settings, producer, seen) as worker:

            async def keep_sending() -> None:
                index = 0
                while not stop_sending.is_set():
                    await send_tasks(producer, settings, [index])
                    await producer.send(topic, reward(settings, index))
                    acknowledged.append(index)
                    index += 1
                    await asyncio.sleep(0.01)

            sending = asyncio.create_task(keep_sending())
            reader = LogReader(settings, "learner", [topic])
            read = [index_of_reward(d) for d in await reader.poll(5.0)]
            await until(lambda: len(seen.finished) > 20, "work before the crash")
            await asyncio.to_thread(own_broker.kill)
            await asyncio.sleep(0.3)
            before = len(acknowledged)
            await asyncio.to_thread(own_broker.start)
            await until(lambda: len(acknowledged) > before + 20, "sends after the restart", 40.0)
            stop_sending.set()
            await sending
            await until(lambda: set(acknowledged) <= set(seen.finished), "every acknowledged task", 40.0)
            await until(worker.health, "health after the restart", 20.0)
            while len(read) < len(acknowledged):
                read.extend(index_of_reward(d) for d in await reader.poll(1.0))
            await reader.close()
        assert Counter(read) == Counter(acknowledged), "the reader lost or repeated records"

    run(test(), 150.0)


@pytest.mark.slow
def test_a_frozen_broker_is_seen_and_its_return_too(
    own_broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A quarter of what they are: how often the broker is asked, and how long it may be silent.
    monkeypatch.setattr("shared.bus.poll_thread._LAG_EVERY_S", 0.5)
    monkeypatch.setattr("shared.bus.poll_thread._SILENT_S", 2.0)
    settings = settings_for(own_broker, tmp_path)

    async def test() -> None:
        seen = Seen()
        async with producing(settings) as producer, working(settings, producer, seen) as worker:
            await send_tasks(producer, settings, [0])
            await until(lambda: seen.finished and worker.health(), "work before the freeze")
            own_broker.freeze()
            try:
                await until(lambda: not worker.health(), "the freeze noticed", 20.0)
                assert "has not answered" in worker.stats().problem
            finally:
                own_broker.thaw()
            await until(worker.health, "health after the freeze", 40.0)
            await send_tasks(producer, settings, [1])
            await until(lambda: 1 in seen.finished, "work after the freeze", 30.0)

    run(test(), 120.0)


@pytest.mark.slow
def test_sends_recover_from_an_outage_longer_than_the_delivery_timeout(
    own_broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client quirk: left alone, a producer whose sent records expired never sends again."""
    options = producer_options(1_000_000)
    short = {**options, "request_timeout_ms": 500, "delivery_timeout_ms": 1000}
    monkeypatch.setattr("shared.bus.producer.producer_options", lambda _: short)
    settings = settings_for(own_broker, tmp_path)
    topic = names(settings).rewards

    async def test() -> None:
        async with producing(settings) as producer:
            await producer.send(topic, reward(settings, 0))
            own_broker.freeze()
            try:
                sends = [
                    asyncio.ensure_future(producer.send(topic, reward(settings, index)))
                    for index in range(1, 20)
                ]
                await asyncio.wait(sends, timeout=3.0)
            finally:
                own_broker.thaw()
            outcomes = await asyncio.wait_for(asyncio.gather(*sends, return_exceptions=True), 30)
            assert any(isinstance(outcome, BusError) for outcome in outcomes), (
                "nothing expired: freeze longer"
            )
            limit = time.monotonic() + 30
            while True:
                assert time.monotonic() < limit, "the producer never sent again"
                with contextlib.suppress(BusError):
                    await producer.send(topic, reward(settings, 99))
                    break

    run(test(), 90.0)


def test_a_broker_that_is_not_there_is_waited_for_and_then_named() -> None:
    bus = BusSettings(bootstrap_servers=f"127.0.0.1:{free_port_pair()}")
    started = time.monotonic()
    with pytest.raises(DependencyError, match="no Kafka broker at 127.0.0.1:.* after 1 s") as caught:
        run(await_broker(bus, 1.0))
    assert time.monotonic() - started < 4.0
    assert caught.value.exit_code == 3
    assert "\n" not in str(caught.value)


def test_no_address_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match="bootstrap_servers is empty"):
        run(await_broker(BusSettings()))


def test_missing_topics_are_waited_for_and_then_named(broker: Broker, tmp_path: Path) -> None:
    settings = settings_for(broker, tmp_path, topics=False)
    with pytest.raises(DependencyError, match="topics are missing after 0.5 s .*temper topics apply"):
        run(await_topics(settings, 0.5))


def index_of_reward(delivery: object) -> int:
    return int(delivery.message.trajectory_id, 16)  # type: ignore[attr-defined]
