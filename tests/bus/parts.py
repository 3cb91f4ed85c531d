"""What the bus tests share: messages, raw reading, and workers that run for the length of a block."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from typing import Any, TypeVar

from shared.bus.connect import client_options, consumer_options
from shared.bus.delivery import Delivery, RawRecord
from shared.bus.producer import TypedProducer
from shared.bus.subscriptions import group_name, task_subscriptions
from shared.bus.topics import TopicNames, names
from shared.bus.worker import Worker
from shared.contracts import ChatMessage, DomainRef, Reward, Slot, Task
from shared.settings import Settings
from shared.storage import ObjectStore

T = TypeVar("T")


def run(test: Coroutine[Any, Any, T], limit_s: float = 40.0) -> T:
    """Run an asynchronous test; a hang is a failure."""

    async def bounded() -> T:
        return await asyncio.wait_for(test, limit_s)

    return asyncio.run(bounded())


def task(settings: Settings, index: int, size: int = 20, priority: str = "normal") -> Task:
    return Task(
        run_id=settings.run.name,
        group_id=f"0-rl-{index:07d}",
        stage="rl",
        stage_index=0,
        domain=DomainRef(name="arithmetic", version=1, seed=index),
        workload="single_turn",
        priority=priority,
        purpose="train",
        messages=(ChatMessage(role="user", content="x" * size),),
    )


def reward(settings: Settings, index: int, size: int = 20) -> Reward:
    return Reward(
        trajectory_id=f"{index:032x}",
        slot=Slot(run_id=settings.run.name, group_id=f"0-rl-{index:07d}", sample_index=0),
        stage="rl",
        stage_index=0,
        purpose="train",
        domain="arithmetic",
        domain_version=1,
        verdict="passed",
        reward=1.0,
        reason="x" * size,
    )


def index_of(delivery: Delivery[Any]) -> int:
    return int(delivery.message.group_id.rpartition("-")[2])


@contextlib.asynccontextmanager
async def producing(settings: Settings) -> AsyncIterator[TypedProducer]:
    producer = TypedProducer(settings, "test", ObjectStore(settings.storage_uri))
    try:
        yield producer
    finally:
        await producer.close()


async def send_tasks(
    producer: TypedProducer, settings: Settings, indices: Iterable[int], priority: str = "normal"
) -> None:
    topic = names(settings).tasks("single_turn", priority)
    await asyncio.gather(
        *(producer.send(topic, task(settings, index, priority=priority)) for index in indices)
    )


class Seen:
    """A handler that notes what it was given; `act` decides what else it does."""

    def __init__(self, act: Callable[[int, Delivery[Any]], Awaitable[None]] | None = None) -> None:
        self._act = act
        self.order: list[int] = []
        self.attempts: dict[int, list[int]] = collections.defaultdict(list)
        self.times: dict[int, list[float]] = collections.defaultdict(list)
        self.finished: list[int] = []
        self.deliveries: list[Delivery[Any]] = []

    async def __call__(self, delivery: Delivery[Any]) -> None:
        index = index_of(delivery)
        self.order.append(index)
        self.attempts[index].append(delivery.attempt)
        self.times[index].append(time.monotonic())
        self.deliveries.append(delivery)
        if self._act is not None:
            await self._act(index, delivery)
        self.finished.append(index)


def make_worker(
    settings: Settings, producer: TypedProducer, handler: Any, name: str = "rollout-0", **options: Any
) -> Worker:
    chosen = {"concurrency": 8, "group": group_name(settings, "rollout"), **options}
    subscriptions = chosen.pop("subscriptions", task_subscriptions(settings))
    return Worker(settings, "rollout", name, subscriptions, handler, producer, **chosen)


@contextlib.asynccontextmanager
async def working(
    settings: Settings, producer: TypedProducer, handler: Any, name: str = "rollout-0", **options: Any
) -> AsyncIterator[Worker]:
    """A worker that runs for the length of the block, and is stopped in order at its end."""
    worker = make_worker(settings, producer, handler, name, **options)
    stop = asyncio.Event()
    running = asyncio.create_task(worker.run(stop))
    try:
        yield worker
    finally:
        stop.set()
        await running


async def until(condition: Callable[[], Any], what: str, limit_s: float = 15.0) -> None:
    """Wait for `condition`; fails naming `what`."""
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, f"not within {limit_s:g} s: {what}"
        await asyncio.sleep(0.02)


def raw_record(record: Any) -> RawRecord:
    """From kafka-python's `ConsumerRecord`, field by field."""
    return RawRecord(
        record.topic,
        record.partition,
        record.offset,
        record.timestamp,
        record.key,
        record.value,
        record.headers,
    )


def read_raw(settings: Settings, *topics: str) -> list[RawRecord]:
    """Everything in these topics now, with a plain client."""
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(**consumer_options(settings.bus, "test-raw"))
    try:
        places = [
            TopicPartition(topic, number)
            for topic in topics
            for number in consumer.partitions_for_topic(topic)
        ]
        consumer.assign(places)
        first, end = consumer.beginning_offsets(places), consumer.end_offsets(places)
        for place in places:
            consumer.seek(place, first[place])
        out: list[RawRecord] = []
        limit = time.monotonic() + 10
        while any(consumer.position(place) < end[place] for place in places):
            assert time.monotonic() < limit, "the logs were not read to their ends within 10 s"
            for batch in consumer.poll(timeout_ms=200).values():
                out.extend(raw_record(record) for record in batch)
        return out
    finally:
        consumer.close()


def send_bytes(
    settings: Settings, topic: str, value: bytes | None, headers: list[tuple[str, bytes]], key: bytes = b"k"
) -> None:
    """Write a record with a plain client, as a foreign producer would."""
    send_bytes_of(settings, topic, [(key, value, headers)])


def send_bytes_of(
    settings: Settings, topic: str, records: Iterable[tuple[bytes, bytes | None, list[tuple[str, bytes]]]]
) -> None:
    """Write records (key, value, headers) with a plain client, one after the other."""
    from kafka import KafkaProducer

    producer = KafkaProducer(**client_options(settings.bus, "test-foreign"))
    try:
        for key, value, headers in records:
            producer.send(topic, value=value, key=key, headers=headers).get(timeout=10)
    finally:
        producer.close()


def dead_letters(settings: Settings, service: str = "rollout") -> list[RawRecord]:
    return read_raw(settings, TopicNames(settings.bus.namespace).dead(service))


def committed(settings: Settings, topic: str) -> dict[int, int]:
    """The group's committed offsets of one topic, by partition."""
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(
        **consumer_options(settings.bus, "test-look"), group_id=group_name(settings, "rollout")
    )
    try:
        found = {
            number: consumer.committed(TopicPartition(topic, number))
            for number in consumer.partitions_for_topic(topic)
        }
    finally:
        consumer.close(autocommit=False)
    return {number: offset for number, offset in found.items() if offset is not None}
