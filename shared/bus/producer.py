"""The typed producer.

Invariant: `send` returns only when the broker has acknowledged the record on all in-sync replicas, and raises when
it has not; no send is forgotten. A record over the limit is refused before it leaves, with both numbers in words.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import functools
import itertools
import os
import time
from collections.abc import Iterable
from typing import Any

from shared.bus import claims, client_quirks
from shared.bus.connect import FETCH_BYTES, bus_error, client_options
from shared.bus.header_fill import NO_HEADERS, HeaderFill
from shared.bus.partitioning import KeyPartitioner
from shared.bus.records import Position
from shared.bus.topic_lines import TopicLines
from shared.contracts.base import Message
from shared.contracts.codec import encode
from shared.contracts.headers import Headers, RawHeaders
from shared.errors import BusError, RecordTooLargeError
from shared.settings import Settings
from shared.storage import ObjectStore
from shared.telemetry.propagation import inject

_TOPIC_WAIT_MS = 10_000
_CLOSE_S = 10.0
_HEADER_BYTES = 4096
"""No header of ours is longer: below that estimate the exact size need not be counted."""


class TypedProducer:
    """Sends messages from one asyncio loop. The Kafka client is made by the first send, in the process that sends.

    A process that was forked after a send gets a client of its own.
    """

    def __init__(self, settings: Settings, client_id: str, store: ObjectStore | None = None) -> None:
        """`store` takes bodies over `bus.claim_check_bytes`; without one they must fit `bus.max_record_bytes`."""
        self._bus = settings.bus
        self._run = settings.run.name
        self._fill = HeaderFill(self._run)
        self._client_id = client_id
        self._store = store
        self._client: Any = None
        self._owner = 0
        self._opening: asyncio.Lock | None = None
        self._foreign_clients: list[Any] = []
        self._lines = TopicLines()
        self._place: Any = None
        """kafka-python's `TopicPartition`, once it is imported."""
        self._closed = False
        self._partitioner = KeyPartitioner()
        self._id_prefix = ""
        self._ids = itertools.count()
        self._acknowledged: collections.deque[tuple[asyncio.Future[Position], Any, BaseException | None]] = (
            collections.deque()
        )
        self._wakeup_due = False

    async def send(
        self,
        topic: str,
        message: Message,
        headers: Headers = NO_HEADERS,
        key: str | None = None,
    ) -> Position:
        """Send one message and wait for its acknowledgement.

        Fills the headers that the caller left empty: schema, message_id, run_id, group_id and purpose (where the
        message has them), and the trace context of the current span. `key` defaults to the message's own.
        Raises `RecordTooLargeError`, `StorageError` (claim check) and `BusError` (the broker did not take it).
        """
        body = encode(message)
        raw = self._fill(inject(headers), message, self._next_id())
        if len(body) > self._bus.claim_check_bytes and self._store is not None:
            ticket = await asyncio.to_thread(claims.park, self._store, self._run, body)
            raw.append(("claim", ticket.encode()))
            body = b""
        return await self.send_raw(topic, (message.key() if key is None else key).encode(), body, raw)

    async def send_raw(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: Iterable[tuple[str, bytes]] = (),
    ) -> Position:
        """Send bytes as they are and wait for the acknowledgement. Raises as `send`."""
        if self._closed:
            raise BusError(f"producer {self._client_id} is closed: {topic} cannot be written any more")
        raw = headers if isinstance(headers, list) else list(headers)
        if len(key or b"") + len(value or b"") + _HEADER_BYTES * len(raw) > self._bus.max_record_bytes:
            self._refuse_oversize(topic, key, value, raw)
        client, partitions = self._client, 0
        if client is not None and self._owner == os.getpid() and not self._lines.busy(topic):
            partitions = client_quirks.partition_count(client, topic)
        if not partitions:
            partitions = await self._prepare(topic)
            client = self._client
        place = self._place(topic, self._partitioner.choose(key, partitions))
        future: asyncio.Future[Position] = asyncio.get_running_loop().create_future()
        done = functools.partial(self._resolve, future)
        failed = functools.partial(self._resolve_error, future)
        try:
            client_quirks.submit(client, place, (key, value, raw), done, failed)
        except Exception as error:
            raise bus_error(f"a record for {topic} was not accepted", error) from error
        try:
            return await future
        except Exception as error:
            await self._replace_poisoned(client)
            raise _send_error(topic, value, error) from error

    async def flush(self) -> None:
        """Wait until everything sent so far has been answered. Raises `BusError` after `bus.connect_timeout_s`."""
        client = self._client
        if client is None or self._owner != os.getpid():
            return
        try:
            await asyncio.to_thread(client.flush, self._bus.connect_timeout_s)
        except Exception as error:
            raise bus_error(f"producer {self._client_id} could not flush", error) from error

    async def close(self) -> None:
        """Flush, within ten seconds, and release the client. Further sends raise. Safe to call twice."""
        self._closed = True
        client, self._client = self._client, None
        if client is not None and self._owner == os.getpid():
            await asyncio.to_thread(client_quirks.close, client, _CLOSE_S)

    def _next_id(self) -> str:
        # 64 random bits of this process and a count: a system call per message would hand the interpreter lock to
        # the client's thread each time, which costs far more than the call.
        if not self._id_prefix or self._owner != os.getpid():
            self._id_prefix = os.urandom(8).hex()
        return f"{self._id_prefix}{next(self._ids):016x}"

    def _refuse_oversize(self, topic: str, key: bytes | None, value: bytes | None, raw: RawHeaders) -> None:
        size = len(key or b"") + len(value or b"")
        for name, content in raw:
            size += len(name) + len(content)
        if size > self._bus.max_record_bytes:
            mend = (
                "raise bus.max_record_bytes and the topic's max.message.bytes (`temper topics apply`)"
                if self._store is not None
                else "give the producer an object store, so that large bodies are claim-checked"
            )
            raise RecordTooLargeError(
                f"a record of {size:,} bytes for {topic} is over the limit of {self._bus.max_record_bytes:,} "
                f"(bus.max_record_bytes): {mend}"
            )

    async def _prepare(self, topic: str) -> int:
        """Make the client of this process, if there is none, and learn the topic: the number of its partitions.

        A topic may also drop out of the metadata again (a broker that restarts).
        """
        if self._owner != os.getpid():
            # Forked: the parent's client has no threads here, and closing it would hang. Keep it out of sight.
            if self._client is not None:
                self._foreign_clients.append(self._client)
            self._client, self._owner, self._opening = None, os.getpid(), asyncio.Lock()
            self._wakeup_due, self._lines = False, TopicLines()
            self._acknowledged.clear()
        return await self._lines.wait(topic, self._look_up)

    async def _look_up(self, topic: str) -> int:
        assert self._opening is not None
        async with self._opening:
            if self._client is None:
                self._client = await asyncio.to_thread(self._open)
        client = self._client
        return client_quirks.partition_count(client, topic) or await self._learn(client, topic)

    def _open(self) -> Any:
        from kafka import KafkaProducer
        from kafka.structs import TopicPartition

        self._place = TopicPartition
        try:
            producer = KafkaProducer(
                **client_options(self._bus, self._client_id),
                **producer_options(self._bus.max_record_bytes),
                bootstrap_timeout_ms=round(self._bus.connect_timeout_s * 1000),
            )
        except Exception as error:
            raise bus_error(f"no producer for {self._bus.bootstrap_servers}", error) from error
        client_quirks.mend(producer)
        return producer

    async def _replace_poisoned(self, client: Any) -> None:
        """A client that a fatal error has ended is closed; the next send makes another."""
        if client is self._client and client_quirks.is_poisoned(client):
            self._client = None
            await asyncio.to_thread(client_quirks.close, client, 1.0)

    async def _learn(self, client: Any, topic: str) -> int:
        """Fetch the topic's metadata in a thread; the number of its partitions."""
        started = time.monotonic()
        try:
            return len(await asyncio.to_thread(client.partitions_for, topic))
        except Exception as error:
            waited = time.monotonic() - started
            raise BusError(
                f"topic {topic} is not there after {waited:.0f} s ({type(error).__name__}): "
                "run `temper topics apply`, or see whether the broker is up"
            ) from error

    def _resolve(self, future: asyncio.Future[Position], metadata: Any) -> None:
        """Called in the client's thread."""
        self._acknowledged.append((future, metadata, None))
        self._wake(future)

    def _resolve_error(self, future: asyncio.Future[Position], error: BaseException) -> None:
        self._acknowledged.append((future, None, error))
        self._wake(future)

    def _wake(self, future: asyncio.Future[Position]) -> None:
        # One wake-up of the loop for a whole batch of acknowledgements: they come in a tight loop.
        if not self._wakeup_due:
            self._wakeup_due = True
            with contextlib.suppress(RuntimeError):  # the loop is gone, and with it whoever waited
                future.get_loop().call_soon_threadsafe(self._settle)

    def _settle(self) -> None:
        self._wakeup_due = False
        while self._acknowledged:
            future, metadata, error = self._acknowledged.popleft()
            if future.done():
                continue
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(Position(metadata.topic, metadata.partition, metadata.offset))


def producer_options(max_record_bytes: int) -> dict[str, Any]:
    """Idempotent, acknowledged by all; batches large enough for one round trip to carry hundreds of records."""
    return {
        "acks": "all",
        "enable_idempotence": True,
        "batch_size": FETCH_BYTES,
        "linger_ms": 0,
        "max_request_size": max(4 * 1024 * 1024, 2 * max_record_bytes),
        "max_block_ms": _TOPIC_WAIT_MS,
        "allow_auto_create_topics": False,
        "metrics_enabled": False,
    }


def _send_error(topic: str, value: bytes | None, error: Exception) -> BusError:
    from kafka.errors import MessageSizeTooLargeError, RecordListTooLargeError

    if isinstance(error, MessageSizeTooLargeError | RecordListTooLargeError):
        return RecordTooLargeError(
            f"the broker refused a record of {len(value or b''):,} bytes for {topic} as too large: "
            "raise the topic's max.message.bytes (`temper topics apply`), or lower bus.max_record_bytes"
        )
    return bus_error(f"a record for {topic} was not acknowledged", error)
