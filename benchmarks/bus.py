"""Messages a second of the typed bus against bare kafka-python, on the same broker, options and body size.

`python -m benchmarks.bus --json [--bootstrap host:port] [--messages N] [--bytes N] [--rounds N]`

Without `--bootstrap` a dev broker is started in a temporary folder. Bare and typed alternate over the rounds and the
best round of each counts: on a machine that others use too, the best is the least disturbed.

What is compared. Both sides move the same records (key, headers, body) under the same client options: acknowledged
by all, idempotent, the same batch and fetch sizes. Both consumers read the same log, the one that the typed producer
wrote.

- Produced: bare is `KafkaProducer.send` of bytes that are ready, with a callback on every future, all of them under
  way at once. Typed is `TypedProducer.send` of messages, each awaited: encoding, headers, the trace context and 512
  sends under way.
- Consumed: bare is `KafkaConsumer.poll` in a group and a count of what came; nothing is looked at and nothing is
  committed, so it is less than any user can do with. The headline ratio is to this. Typed is a `Worker` whose
  handler gets decoded, validated messages, and whose offsets are tracked one by one and committed. `bare_consume_json`
  is the least that a user of JSON bodies does: the same poll, and `json.loads` of every body.

The collector is told to pass over the messages that the benchmark itself holds (`gc.freeze`), on every side: to walk
20,000 of them again and again is no cost of a client.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from shared.bus import admin
from shared.bus.connect import client_options, consumer_options, wait_for_broker
from shared.bus.delivery import Delivery
from shared.bus.header_fill import NO_HEADERS, HeaderFill
from shared.bus.producer import TypedProducer, producer_options
from shared.bus.subscriptions import Subscription
from shared.bus.topics import TopicNames
from shared.bus.worker import Worker
from shared.contracts import Reward, Slot
from shared.contracts.codec import encode
from shared.settings import BusSettings, Settings, parse_settings

_SENDERS = 512
_KEYS = 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument(
        "--json", action="store_true", help="one JSON line a figure (otherwise a short table)"
    )
    parser.add_argument("--bootstrap", default="")
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--bytes", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        bootstrap = arguments.bootstrap or stack.enter_context(dev_broker(folder))
        for figure in measure(bootstrap, arguments.messages, arguments.bytes, arguments.rounds, folder):
            line = json.dumps(figure) if arguments.json else f"{figure['figure']:32} {figure['value']:>12}"
            print(line, flush=True)  # noqa: T201


def measure(bootstrap: str, messages: int, size: int, rounds: int, folder: Path) -> Iterator[dict[str, Any]]:
    best: dict[str, float] = {}
    for _ in range(rounds):
        # A namespace for each: consuming always starts from a log that holds this round's messages only.
        bare, typed = _settings(bootstrap, folder), _settings(bootstrap, folder)
        rates = {
            "bare_produce": bare_produce(bare, messages, size),
            "typed_produce": asyncio.run(typed_produce(typed, messages, size)),
            "bare_consume": bare_consume(typed, messages),
            "typed_consume": asyncio.run(typed_consume(typed, messages)),
            "bare_consume_json": bare_consume(typed, messages, json.loads),
        }
        best = {name: max(rate, best.get(name, 0.0)) for name, rate in rates.items()}
    common = {"messages": messages, "bytes": size, "rounds": rounds}
    for name, rate in best.items():
        yield {"figure": f"bus.{name}", "unit": "messages/s", "value": round(rate), **common}
    for side in ("produce", "consume", "consume_json"):
        ratio = best[f"typed_{side.removesuffix('_json')}"] / best[f"bare_{side}"]
        yield {"figure": f"bus.{side}_ratio", "unit": "typed/bare", "value": round(ratio, 3), **common}


def bare_produce(settings: Settings, messages: int, size: int) -> float:
    from kafka import KafkaProducer

    topic = TopicNames(settings.bus.namespace).rewards
    message = _message(settings, 0, size)
    body, headers = encode(message), HeaderFill(settings.run.name)(NO_HEADERS, message, "0" * 32)
    producer = KafkaProducer(
        **client_options(settings.bus, "bench-bare"), **producer_options(settings.bus.max_record_bytes)
    )
    producer.partitions_for(topic)
    done = threading.Event()
    left = messages

    def acknowledged(_: object) -> None:
        nonlocal left
        left -= 1
        if not left:
            done.set()

    started = _start()
    for index in range(messages):
        sent = producer.send(topic, value=body, key=f"g{index % _KEYS}".encode(), headers=headers)
        sent.add_callback(acknowledged)
    assert done.wait(300), f"{left} messages were not acknowledged"
    elapsed = time.perf_counter() - started
    producer.close()
    return messages / elapsed


async def typed_produce(settings: Settings, messages: int, size: int) -> float:
    topic = TopicNames(settings.bus.namespace).rewards
    producer = TypedProducer(settings, "bench-typed")
    bodies = [_message(settings, index, size) for index in range(messages)]
    await producer.send(
        TopicNames(settings.bus.namespace).workers, bodies[0]
    )  # connect before the clock starts
    waiting = iter(bodies)

    async def sender() -> None:
        for message in waiting:
            await producer.send(topic, message)

    started = _start()
    await asyncio.gather(*(sender() for _ in range(_SENDERS)))
    elapsed = time.perf_counter() - started
    await producer.close()
    return messages / elapsed


def bare_consume(settings: Settings, messages: int, decode: Callable[[bytes], object] | None = None) -> float:
    from kafka import KafkaConsumer

    options = {**consumer_options(settings.bus, "bench-bare"), "auto_offset_reset": "earliest"}
    consumer = KafkaConsumer(
        TopicNames(settings.bus.namespace).rewards, group_id=f"bare-{uuid.uuid4().hex[:8]}", **options
    )
    clock = _Clock(messages)
    _start()
    while not clock.done:
        for records in consumer.poll(timeout_ms=200).values():
            if decode is not None:
                for record in records:
                    decode(record.value)
            clock.count(len(records))
    consumer.close()
    return clock.rate()


async def typed_consume(settings: Settings, messages: int) -> float:
    clock = _Clock(messages)
    _start()
    stop = asyncio.Event()

    async def handler(delivery: Delivery[Reward]) -> None:
        assert delivery.message.reward == 1.0
        clock.count(1)
        if clock.done:
            stop.set()

    producer = TypedProducer(settings, "bench-typed")
    worker = Worker(
        settings,
        "verifier",
        "bench-0",
        [Subscription(TopicNames(settings.bus.namespace).rewards)],
        handler,
        producer,
        concurrency=32,
        group=f"typed-{uuid.uuid4().hex[:8]}",
    )
    await worker.run(stop)
    await producer.close()
    return clock.rate()


def _start() -> float:
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    return time.perf_counter()


class _Clock:
    """From the first message that comes to the last: joining the group is not part of the rate."""

    def __init__(self, messages: int) -> None:
        self._left = self._messages = messages
        self._first = 0
        self._started = self._ended = 0.0

    @property
    def done(self) -> bool:
        return self._left <= 0

    def count(self, number: int) -> None:
        if not self._started:
            self._started, self._first = time.perf_counter(), number
        self._left -= number
        if self.done and not self._ended:
            self._ended = time.perf_counter()

    def rate(self) -> float:
        return (self._messages - self._first) / (self._ended - self._started)


def _message(settings: Settings, index: int, size: int) -> Reward:
    group = f"g{index % _KEYS}"
    return Reward(
        trajectory_id=f"{index:032x}",
        slot=Slot(run_id=settings.run.name, group_id=group, sample_index=0),
        stage="rl",
        stage_index=0,
        purpose="train",
        domain="arithmetic",
        domain_version=1,
        verdict="passed",
        reward=1.0,
        reason="x" * max(0, size - 240),
    )


def _settings(bootstrap: str, folder: Path) -> Settings:
    settings = parse_settings(
        {
            "run": {"name": "bench", "folder": str(folder / "runs")},
            "bus": {
                "bootstrap_servers": bootstrap,
                "namespace": f"bench{uuid.uuid4().hex[:8]}",
                "retry_delays_s": [1.0],
            },
            "model": {"path": "none"},
            "domains": [{"name": "arithmetic"}],
            "stages": [{"kind": "rl", "steps": 1}],
        },
        source="benchmark",
    )
    admin.apply(settings)
    return settings


@contextlib.contextmanager
def dev_broker(folder: Path) -> Iterator[str]:
    """A dev broker process on a free port, for as long as the block lasts."""
    ready = folder / "ready"
    command = [sys.executable, "-m", "shared.bus.devbroker", "--port", "0", "--data", str(folder / "broker")]
    process = subprocess.Popen([*command, "--ready-file", str(ready)], stdout=subprocess.DEVNULL)
    try:
        _until(ready.exists, 30.0)
        bootstrap = ready.read_text()
        wait_for_broker(BusSettings(bootstrap_servers=bootstrap), 30.0)
        yield bootstrap
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(15)


def _until(condition: Callable[[], bool], limit_s: float) -> None:
    until = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > until:
            raise SystemExit("the dev broker did not start")
        time.sleep(0.05)


if __name__ == "__main__":
    main()
