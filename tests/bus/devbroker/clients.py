"""Short ways to real clients, and a broker in a process of its own."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.admin import NewTopic
from kafka.record.memory_records import MemoryRecordsBuilder

ROOT = Path(__file__).parents[3]


@contextlib.contextmanager
def admin(bootstrap: str) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        yield client
    finally:
        client.close()


@contextlib.contextmanager
def producer(bootstrap: str, **config: Any) -> Iterator[KafkaProducer]:
    client = KafkaProducer(bootstrap_servers=bootstrap, **{"acks": "all", **config})
    try:
        yield client
    finally:
        client.close(timeout=5)


@contextlib.contextmanager
def consumer(bootstrap: str, *topics: str, **config: Any) -> Iterator[KafkaConsumer]:
    defaults = {"auto_offset_reset": "earliest", "enable_auto_commit": False, "fetch_max_wait_ms": 50}
    client = KafkaConsumer(*topics, bootstrap_servers=bootstrap, **{**defaults, **config})
    try:
        yield client
    finally:
        client.close()


def create(bootstrap: str, name: str, partitions: int = 1, **configs: Any) -> None:
    """Create a topic; config names have underscores for dots."""
    with admin(bootstrap) as client:
        dotted = {key.replace("_", "."): str(value) for key, value in configs.items()}
        client.create_topics([NewTopic(name, partitions, 1, topic_configs=dotted)])


def send(bootstrap: str, topic: str, values: list[bytes], **config: Any) -> list[int]:
    """Send values in order to partition 0 and return their offsets; raises the first failure."""
    with producer(bootstrap, **config) as client:
        futures = [client.send(topic, value=value, partition=0) for value in values]
        return [future.get(timeout=10).offset for future in futures]


def read(bootstrap: str, topic: str, count: int, timeout_s: float = 10, **config: Any) -> list[Any]:
    """The first `count` records of a topic, or as many as came before the time was up."""
    found: list[Any] = []
    with consumer(bootstrap, topic, **config) as client:
        deadline = time.monotonic() + timeout_s
        while len(found) < count and time.monotonic() < deadline:
            for records in client.poll(timeout_ms=100).values():
                found.extend(records)
    return found


def poll(client: KafkaConsumer, timeout_ms: int) -> dict[Any, list[Any]]:
    """poll() of a group member. kafka-python 3.0.12 forgets an assignment that arrives just after poll() gave up
    waiting for it, and never asks again; this makes it ask.
    """
    records: dict[Any, list[Any]] = client.poll(timeout_ms=timeout_ms)
    coordinator = client._coordinator
    task = coordinator._join_task
    if coordinator.rejoining and task is not None and task.is_done and not coordinator.need_rejoin():
        coordinator.request_rejoin()
    return records


def batch(
    values: list[tuple[bytes | None, bytes | None]],
    timestamp: int = 1_700_000_000_000,
    producer_id: int = -1,
    sequence: int = -1,
    epoch: int = 0,
) -> bytes:
    """One record batch as a producer sends it. `values` are (key, value)."""
    identity = (
        {}
        if producer_id < 0
        else {"producer_id": producer_id, "producer_epoch": epoch, "base_sequence": sequence}
    )
    builder = MemoryRecordsBuilder(2, 0, 1 << 30, **identity)
    for key, value in values:
        builder.append(timestamp, key, value, [])
    builder.close()
    return bytes(builder.buffer())


def eventually(condition: Callable[[], Any], timeout_s: float = 10) -> Any:
    """Poll until `condition` gives something true; fail with its last value."""
    deadline = time.monotonic() + timeout_s
    value = condition()
    while not value and time.monotonic() < deadline:
        time.sleep(0.01)
        value = condition()
    assert value, f"still {value!r} after {timeout_s} s"
    return value


class BrokerProcess:
    """`python -m shared.bus.devbroker` on a folder; can be killed and started again on the same port."""

    def __init__(self, folder: Path, *extra: str) -> None:
        self.folder = folder
        self.extra = extra
        self.port = 0
        self.process: subprocess.Popen[str] | None = None

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> "BrokerProcess":
        ready = self.folder.parent / "ready"
        ready.unlink(missing_ok=True)
        command = [sys.executable, "-m", "shared.bus.devbroker", "--port", str(self.port)]
        command += ["--data", str(self.folder), "--ready-file", str(ready), *self.extra]
        self.process = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ}
        )
        eventually(lambda: ready.exists() or self.process.poll() is not None, 20)
        assert self.process.poll() is None, self.process.communicate()
        self.port = int(ready.read_text().rsplit(":", 1)[1])
        return self

    def signal(self, number: signal.Signals) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        self.process.communicate(timeout=20)
        return self.process.returncode

    def kill_and_restart(self) -> None:
        """kill -9, then a new process on the same folder and port."""
        assert self.signal(signal.SIGKILL) == -signal.SIGKILL
        self.start()

    def __enter__(self) -> "BrokerProcess":
        return self.start()

    def __exit__(self, *exc: object) -> None:
        if self.process is not None and self.process.poll() is None:
            self.signal(signal.SIGKILL)
