"""The typed producer: acknowledged or raised, never silent."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable

import pytest

from shared.bus.header_fill import HeaderFill
from shared.bus.producer import TypedProducer
from shared.bus.records import header
from shared.bus.topics import names
from shared.contracts import Headers, decode
from shared.errors import BusError, RecordTooLargeError
from shared.settings import Settings
from shared.storage import ObjectStore
from tests.bus.parts import producing, read_raw, reward, run, task

Make = Callable[..., Settings]


def test_a_message_arrives_with_its_identity_in_the_headers(make_settings: Make) -> None:
    settings = make_settings()
    topic = names(settings).rewards

    async def test() -> None:
        async with producing(settings) as producer:
            place = await producer.send(topic, reward(settings, 4), Headers(policy_version=3, deadline_ms=5))
            assert place.topic == topic
            assert place.offset == 0

    run(test())
    [record] = read_raw(settings, topic)
    headers = Headers.from_kafka(record.headers)
    assert decode(headers.schema, record.value or b"") == reward(settings, 4)
    assert headers.run_id == settings.run.name
    assert headers.group_id == "0-rl-0000004"
    assert headers.purpose == "train"
    assert (headers.policy_version, headers.deadline_ms) == (3, 5)
    assert len(headers.message_id) == 32
    assert record.key == b"0-rl-0000004"


def test_message_ids_differ_and_given_headers_stay() -> None:
    fill = HeaderFill("run")
    settings_free = Headers(group_id="mine", message_id="given")
    from tests.brokers import settings_for

    class Nowhere:
        bootstrap = "127.0.0.1:1"

    from pathlib import Path

    settings = settings_for(Nowhere, Path("/nowhere"), topics=False)
    raw = fill(settings_free, reward(settings, 1), "new")
    assert header(raw, "group_id") == "mine"
    assert header(raw, "message_id") == "given"
    assert [name for name, _ in raw].count("group_id") == 1


def test_records_of_one_key_stay_in_order(make_settings: Make) -> None:
    settings = make_settings(bus={"partitions": 4})
    topic = names(settings).rewards

    async def test() -> None:
        async with producing(settings) as producer:
            sends = [
                producer.send(topic, reward(settings, index), key=f"key-{index % 7}") for index in range(400)
            ]
            places = await asyncio.gather(*sends)
        assert len(set(places)) == 400

    run(test())
    order: dict[bytes, list[int]] = {}
    partitions: dict[bytes, set[int]] = {}
    for record in read_raw(settings, topic):
        index = int(decode("temper.reward/1", record.value or b"").trajectory_id, 16)  # type: ignore[attr-defined]
        order.setdefault(record.key or b"", []).append(index)
        partitions.setdefault(record.key or b"", set()).add(record.partition)
    assert all(indices == sorted(indices) for indices in order.values())
    assert all(len(found) == 1 for found in partitions.values())


def test_keys_go_where_every_kafka_client_puts_them(make_settings: Make) -> None:
    from kafka import KafkaProducer

    from shared.bus.connect import client_options

    settings = make_settings(bus={"partitions": 5})
    topic = names(settings).rewards
    plain = KafkaProducer(**client_options(settings.bus, "plain"))
    theirs = {
        key: plain.send(topic, value=b"x", key=key.encode()).get(10).partition
        for key in ("a", "0-rl-0000012", "ключ", "x" * 99)
    }
    plain.close()

    async def test() -> dict[str, int]:
        async with producing(settings) as producer:
            return {key: (await producer.send_raw(topic, key.encode(), b"y")).partition for key in theirs}

    assert run(test()) == theirs


def test_a_record_over_the_limit_is_refused_with_both_numbers(make_settings: Make) -> None:
    settings = make_settings(bus={"max_record_bytes": 100_000})
    topic = names(settings).rewards

    async def test() -> None:
        producer = TypedProducer(settings, "test")
        try:
            with pytest.raises(
                RecordTooLargeError, match=r"over the limit of 100,000 .*give the producer an object store"
            ) as caught:
                await producer.send(topic, reward(settings, 1, size=150_000))
            assert "150," in str(caught.value)
            assert caught.value.exit_code == 4
            await producer.send(topic, reward(settings, 2, size=90_000))
        finally:
            await producer.close()

    run(test())
    assert len(read_raw(settings, topic)) == 1


def test_what_the_broker_refuses_as_too_large_fails_alone_and_is_said_so(make_settings: Make) -> None:
    from tests.bus.test_failures import limit_topic

    settings = make_settings()
    topic = names(settings).rewards
    limit_topic(settings, topic, 2000)

    async def test() -> None:
        producer = TypedProducer(settings, "test")
        try:
            for _ in range(2):
                with pytest.raises(RecordTooLargeError, match="raise the topic's max.message.bytes"):
                    await producer.send(topic, reward(settings, 1, size=50_000))
                # One refused record must not take the others with it (a client quirk).
                await asyncio.gather(
                    producer.send(topic, reward(settings, 2)),
                    producer.send(names(settings).policies, reward(settings, 3)),
                )
        finally:
            await producer.close()

    run(test())


def test_a_large_body_goes_to_the_store_first(make_settings: Make) -> None:
    settings = make_settings(bus={"claim_check_bytes": 4096})
    topic = names(settings).rewards

    async def test() -> None:
        store = ObjectStore(settings.storage_uri)
        async with producing(settings) as producer:
            await producer.send(topic, reward(settings, 1, size=3_000_000))
            await producer.send(topic, reward(settings, 1, size=3_000_000))
            await producer.send(topic, reward(settings, 2, size=100))
        assert len(store.list("bodies/")) == 1, "the same body is stored once"

    run(test())
    sizes = sorted(len(record.value or b"") for record in read_raw(settings, topic))
    assert sizes[:2] == [0, 0]
    assert 100 < sizes[2] < 4096


def test_a_topic_that_is_not_there_raises_with_the_mend(
    make_settings: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shared.bus.producer._TOPIC_WAIT_MS", 1000)
    settings = make_settings()

    async def test() -> None:
        async with producing(settings) as producer:
            nowhere = f"{settings.bus.namespace}.nothing"
            lost = asyncio.gather(
                *(producer.send(nowhere, task(settings, index)) for index in range(20)),
                return_exceptions=True,
            )
            started = time.monotonic()
            await producer.send(names(settings).rewards, reward(settings, 1))
            assert not lost.done(), "a topic that is there waited for one that is not"
            for error in await lost:
                assert isinstance(error, BusError)
                assert "run `temper topics apply`" in str(error)
            assert time.monotonic() - started < 5, "everybody waited in turn"

    run(test())


def test_a_closed_producer_refuses(make_settings: Make) -> None:
    settings = make_settings()

    async def test() -> None:
        producer = TypedProducer(settings, "test")
        await producer.send(names(settings).rewards, reward(settings, 1))
        await producer.flush()
        await producer.close()
        await producer.close()
        with pytest.raises(BusError, match="is closed"):
            await producer.send(names(settings).rewards, reward(settings, 1))

    run(test())


def test_a_forked_child_gets_a_client_of_its_own(make_settings: Make) -> None:
    """A client made before fork() has no threads in the child, and would hang there for ever."""
    settings = make_settings(bus={"partitions": 1})
    topic = names(settings).rewards
    producer = TypedProducer(settings, "test")

    async def send(index: int) -> None:
        await asyncio.wait_for(producer.send(topic, reward(settings, index)), 15)

    async def parent() -> None:
        await send(1)
        child = os.fork()
        if not child:
            code = 1
            try:
                # The parent's loop is this thread's running loop here too: leave it before starting another.
                asyncio._set_running_loop(None)  # type: ignore[attr-defined]
                asyncio.run(send(2))
                code = 0
            finally:
                os._exit(code)
        status = await asyncio.to_thread(os.waitpid, child, 0)
        assert status[1] == 0, "the child could not send"
        await send(3)
        await producer.close()

    run(parent())
    ids = [header(record.headers, "message_id") for record in read_raw(settings, topic)]
    assert len(set(ids)) == len(ids) == 3
