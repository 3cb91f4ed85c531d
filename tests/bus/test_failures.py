"""Attempts that fail: delayed retries, dead letters with the raw record, and partitions that stand still."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from shared.bus import admin
from shared.bus.delivery import Delivery
from shared.bus.records import header
from shared.bus.retry import RetryLater
from shared.bus.topics import names
from shared.contracts import Headers
from shared.settings import Settings
from shared.storage import ObjectStore
from tests.brokers import eventually
from tests.bus.parts import (
    Seen,
    committed,
    dead_letters,
    producing,
    read_raw,
    run,
    send_bytes_of,
    send_tasks,
    task,
    until,
    working,
)

Make = Callable[..., Settings]
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_a_failed_attempt_comes_again_after_its_delay_and_then_dies(make_settings: Make) -> None:
    settings = make_settings(bus={"retry_delays_s": [0.3, 0.6], "max_attempts": 3})

    async def test() -> None:
        async def fail(index: int, delivery: Delivery[Any]) -> None:
            raise ValueError(f"no luck with {index}")

        told: list[tuple[int, str]] = []

        async def exhausted(delivery: Delivery[Any], error: Exception) -> None:
            told.append((delivery.attempt, str(error)))

        seen = Seen(fail)
        topic = names(settings).tasks("single_turn", "normal")
        async with producing(settings) as producer:
            origin = await producer.send(
                topic, task(settings, 7), Headers(traceparent=TRACEPARENT, attempt=5)
            )
            async with working(settings, producer, seen, on_exhausted=exhausted) as worker:
                await until(lambda: worker.stats().dead == 1, "the dead letter")
                assert worker.stats().failures == 3
                assert worker.stats().retried == 2
        assert seen.attempts[7] == [1, 2, 3]
        first, second, third = seen.times[7]
        assert 0.3 <= second - first < 2.5
        assert 0.6 <= third - second < 3.0
        assert told == [(3, "no luck with 7")]
        assert {delivery.headers.traceparent for delivery in seen.deliveries} == {TRACEPARENT}
        assert {delivery.headers.attempt for delivery in seen.deliveries} == {5}, "the message's own attempt"
        [letter] = dead_letters(settings)
        original = read_raw(settings, topic)[0]
        assert (letter.key, letter.value) == (original.key, original.value)
        assert header(letter.headers, "error.type") == "ValueError"
        assert header(letter.headers, "error.message") == "no luck with 7"
        assert header(letter.headers, "origin") == str(origin)
        assert set(original.headers) <= set(letter.headers)
        assert len({name for name, _ in letter.headers}) == len(letter.headers), "a header was appended"

    run(test())


def test_a_handler_chooses_a_longer_delay(make_settings: Make) -> None:
    settings = make_settings(bus={"retry_delays_s": [0.1, 0.6]})

    async def test() -> None:
        async def later(index: int, delivery: Delivery[Any]) -> None:
            if delivery.attempt == 1:
                raise RetryLater("the sandbox is full", delay_s=0.3)

        seen = Seen(later)
        async with producing(settings) as producer:
            await send_tasks(producer, settings, [0])
            async with working(settings, producer, seen):
                await until(lambda: seen.finished, "the second attempt")
        assert seen.times[0][1] - seen.times[0][0] >= 0.6

    run(test())


def test_waiting_retries_hold_up_nobody(make_settings: Make) -> None:
    """A retry that is not due for long waits apart; fresh records and earlier retries go on."""
    settings = make_settings(bus={"retry_delays_s": [0.2, 60.0], "partitions": 1})

    async def test() -> None:
        async def mixed(index: int, delivery: Delivery[Any]) -> None:
            if index == 0:
                raise RetryLater("much later", delay_s=60)
            if index % 2 and delivery.attempt == 1:
                raise RetryLater("soon")

        seen = Seen(mixed)
        async with producing(settings) as producer:
            await send_tasks(producer, settings, range(40))
            async with working(settings, producer, seen) as worker:
                await until(lambda: len(seen.finished) == 39, "all but the one that waits", 8.0)
                await send_tasks(producer, settings, [40])
                await until(lambda: 40 in seen.finished, "a fresh record")
                assert worker.health()

    run(test())


BROKEN = {
    "no JSON": (b"{bad", [("schema", b"temper.task/1")], "not readable"),
    "bytes that are no text": (b"\xff\xfe\x00", [("schema", b"temper.task/1")], "not readable"),
    "no schema": (b"{}", [], "no schema header"),
    "a foreign schema": (b"{}", [("schema", b"acme.order/1")], "is unknown"),
    "a version from the future": (b"{}", [("schema", b"temper.task/99")], "upgrade"),
    "a schema header that is none": (b"{}", [("schema", b"\xff")], "must read like"),
    "a field missing": (b"{}", [("schema", b"temper.task/1")], "not readable"),
    "a number that is none": (b"{}", [("schema", b"temper.task/1"), ("attempt", b"x")], "not readable"),
    "a delivery count that is none": (b"{}", [("schema", b"temper.task/1"), ("delivery", b"-3")], "delivery"),
    "no body": (None, [("schema", b"temper.task/1")], "no body"),
    "a ticket that is none": (b"", [("schema", b"temper.task/1"), ("claim", b"[1]")], "claim"),
    "lengths that differ": (
        json.dumps({"sequences": [{"token_ids": {"dtype": "<i4", "data": "AAAA"}}]}).encode(),
        [("schema", b"temper.trajectory/1")],
        "not readable",
    ),
}


def test_what_cannot_be_read_becomes_a_dead_letter_as_it_was_and_the_rest_goes_on(
    make_settings: Make,
) -> None:
    settings = make_settings(bus={"partitions": 1})
    topic = names(settings).tasks("single_turn", "normal")
    send_bytes_of(
        settings, topic, [(name.encode(), value, headers) for name, (value, headers, _) in BROKEN.items()]
    )

    async def test() -> None:
        seen = Seen()
        async with producing(settings) as producer:
            await send_tasks(producer, settings, [1])
            async with working(settings, producer, seen) as worker:
                await until(lambda: worker.stats().processed == len(BROKEN) + 1, "every record")
                assert worker.stats().retried == 0, "retrying cannot make it readable"
        assert seen.finished == [1]

    run(test())
    letters = {(letter.key or b"").decode(): letter for letter in dead_letters(settings)}
    assert set(letters) == set(BROKEN)
    for offset, (name, (value, headers, reason)) in enumerate(BROKEN.items()):
        letter = letters[name]
        assert letter.value == value, name
        kept = [item for item in headers if item[0] != "delivery"]
        assert [item for item in letter.headers if item in kept] == kept, name
        assert reason in header(letter.headers, "error.message"), name
        assert header(letter.headers, "origin") == f"{topic}/0/{offset}"
    assert committed(settings, topic) == {0: len(BROKEN) + 1}


def test_a_dead_letter_that_cannot_be_written_stops_its_partition_only(make_settings: Make) -> None:
    """While the broker refuses the letter, the record is kept, later ones of its partition wait, and it is said."""
    settings = make_settings(bus={"partitions": 2, "max_attempts": 1})
    limit_topic(settings, names(settings).dead("rollout"), 100)
    topic = names(settings).tasks("single_turn", "normal")

    async def test() -> None:
        fail_first = True

        async def handler(index: int, delivery: Delivery[Any]) -> None:
            if delivery.partition == 0 and delivery.offset == 0 and fail_first:
                raise ValueError("broken")

        seen = Seen(handler)
        async with producing(settings) as producer:
            await send_tasks(producer, settings, range(40))
            async with working(settings, producer, seen, concurrency=1) as worker:
                await until(lambda: worker.stats().blocked, "the partition that stands still", 25.0)
                await send_tasks(producer, settings, range(40, 80))
                ours = {d.offset for d in seen.deliveries if d.partition == 0}
                await until(
                    lambda: sum(d.partition == 1 for d in seen.deliveries) > 30, "the other partition", 10.0
                )
                assert {d.offset for d in seen.deliveries if d.partition == 0} == ours
                assert not worker.health()
                assert "0/0" in worker.stats().blocked[0]
                assert committed(settings, topic).get(0, 0) == 0, "committed past a record that was not kept"
                admin.apply(settings)
                await until(lambda: not worker.stats().blocked, "the letter, once the broker takes it", 20.0)
                await until(lambda: len(seen.order) == 80, "everything else")
                assert worker.health()
        assert len(dead_letters(settings)) == 1

    run(test(), 70.0)


def test_a_large_body_travels_by_ticket_and_a_missing_one_is_a_fault(make_settings: Make) -> None:
    settings = make_settings(bus={"claim_check_bytes": 2048, "retry_delays_s": [0.2], "max_attempts": 3})
    topic = names(settings).tasks("single_turn", "normal")

    async def test() -> None:
        seen = Seen()
        store = ObjectStore(settings.storage_uri)
        async with producing(settings) as producer:
            await producer.send(topic, task(settings, 1, size=50_000))
            await producer.send(topic, task(settings, 2, size=60_000))
            raw = read_raw(settings, topic)
            assert all(record.value == b"" and header(record.headers, "claim") for record in raw)
            tickets = [json.loads(header(record.headers, "claim")) for record in raw]
            lost = min(tickets, key=lambda ticket: ticket["bytes"])
            body = store.get_bytes(lost["uri"])
            key = f"bodies/{settings.run.name}/{lost['sha256']}"
            store.delete(key)
            async with working(settings, producer, seen) as worker:
                await until(lambda: seen.finished == [2], "the body that is there")
                await until(lambda: worker.stats().retried >= 1, "a retry of the one that is not")
                store.put_bytes(key, body)
                await until(lambda: sorted(seen.finished) == [1, 2], "the body that came back")
                assert worker.stats().dead == 0
            assert len(seen.deliveries[-1].message.messages[0].content) == 50_000

    run(test())


def test_a_body_that_is_another_never_reaches_a_handler(make_settings: Make) -> None:
    settings = make_settings(bus={"claim_check_bytes": 2048, "max_attempts": 1})
    topic = names(settings).tasks("single_turn", "normal")

    async def test() -> None:
        seen = Seen()
        store = ObjectStore(settings.storage_uri)
        async with producing(settings) as producer:
            await producer.send(topic, task(settings, 1, size=50_000))
            [key] = store.list("bodies/")
            store.put_bytes(key, b"something else")
            async with working(settings, producer, seen) as worker:
                await until(lambda: worker.stats().dead == 1, "the dead letter")
        assert not seen.order
        [letter] = dead_letters(settings)
        assert header(letter.headers, "error.type") == "DigestMismatchError"

    run(test())


def test_an_exhausted_hook_that_fails_is_asked_again_and_nothing_is_lost(make_settings: Make) -> None:
    settings = make_settings(bus={"max_attempts": 1})

    async def test() -> None:
        async def fail(index: int, delivery: Delivery[Any]) -> None:
            raise ValueError("broken")

        asked: list[float] = []

        async def exhausted(delivery: Delivery[Any], error: Exception) -> None:
            asked.append(time.monotonic())
            if len(asked) == 1:
                raise RuntimeError("cannot say it now")

        async with producing(settings) as producer:
            await send_tasks(producer, settings, [0])
            async with working(settings, producer, Seen(fail), on_exhausted=exhausted) as worker:
                await until(lambda: worker.stats().dead == 1, "the letter after the second try")
        assert len(asked) == 2

    run(test())


def test_two_groups_of_one_service_do_not_take_each_others_retries(make_settings: Make) -> None:
    settings = make_settings(bus={"retry_delays_s": [0.2]})

    async def test() -> None:
        async def fail_once(index: int, delivery: Delivery[Any]) -> None:
            if delivery.attempt == 1:
                raise ValueError("once")

        failing, fine = Seen(fail_once), Seen()
        async with producing(settings) as producer:
            await send_tasks(producer, settings, range(6))
            async with (
                working(settings, producer, failing, "rollout-0", group="fleet-a"),
                working(settings, producer, fine, "rollout-1", group="fleet-b") as other,
            ):
                await until(lambda: len(failing.finished) == 6, "the second attempts")
                await until(lambda: other.stats().skipped == 6, "foreign retries passed over")
        assert sorted(fine.order) == list(range(6))

    run(test())


@pytest.mark.parametrize("kind", ["cancelled", "hidden"])
def test_a_handler_that_is_cancelled_from_inside_fails_its_attempt(make_settings: Make, kind: str) -> None:
    """A timeout inside a handler is a failed attempt; it must not end the lane that runs it."""
    settings = make_settings(bus={"max_attempts": 1})

    async def test() -> None:
        async def handler(index: int, delivery: Delivery[Any]) -> None:
            if index == 0 and kind == "cancelled":
                async with asyncio.timeout(0.05):
                    await asyncio.sleep(5)
            if index == 0:
                raise BaseExceptionGroup("several", [ValueError("a"), ValueError("b")])

        seen = Seen(handler)
        async with producing(settings) as producer:
            await send_tasks(producer, settings, range(3))
            async with working(settings, producer, seen, concurrency=1) as worker:
                await until(lambda: worker.stats().processed == 3, "all three")
                assert worker.stats().dead == 1

    run(test())


def limit_topic(settings: Settings, topic: str, largest: int) -> None:
    """Let the broker refuse everything over `largest` bytes; `admin.apply` mends it."""
    from kafka.admin import ConfigResource, ConfigResourceType

    from shared.bus.admin import admin_client

    with admin_client(settings.bus) as client:
        change = ConfigResource(ConfigResourceType.TOPIC, topic, configs={"max.message.bytes": str(largest)})
        client.alter_configs([change])
        asked = ConfigResource(ConfigResourceType.TOPIC, topic, configs={"max.message.bytes": ""})
        # Apache Kafka answers before its log has heard of it.
        eventually(
            lambda: (
                client.describe_configs([asked], config_filter="all")["topic"][topic]["max.message.bytes"][
                    "value"
                ]
                == str(largest)
            ),
            what="the new limit",
        )
    time.sleep(0.3)
