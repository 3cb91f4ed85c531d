"""A reader of whole logs, without a consumer group: its owner keeps the offsets.

Invariant: records come in partition order, each once per start, and `positions()` names exactly what has been
returned, so that an owner that stores it beside its own state continues with nothing lost or repeated. An offset
that the broker no longer has is an error, never a silent jump. All Kafka calls are made in one thread.
"""

from __future__ import annotations

import asyncio
import collections
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import structlog

from shared.bus import claims
from shared.bus.deadletters import DeadLetters
from shared.bus.delivery import Delivery, RawRecord, Undecodable, decode_record, open_envelope
from shared.bus.log_cursor import LogCursor, OffsetLostError
from shared.bus.producer import TypedProducer
from shared.contracts.base import Message
from shared.errors import BusError, ContractError
from shared.settings import Settings
from shared.storage import ObjectStore

_log = structlog.get_logger(__name__)
Start = Mapping[tuple[str, int], int] | Literal["earliest", "end"]
Read = list[Delivery[Message] | Undecodable]


class LogReader:
    """Reads every partition of some topics from given offsets.

    `start`: "earliest", "end", or the next offset of each (topic, partition); partitions it does not name start at
    their beginning. `service` names the dead-letter topic. Without `producer_for_dead`, undecodable records are
    logged as errors and counted in `undecodable`.
    """

    def __init__(
        self,
        settings: Settings,
        service: str,
        topics: Sequence[str],
        start: Start = "earliest",
        producer_for_dead: TypedProducer | None = None,
    ) -> None:
        self._settings = settings
        self._service = service
        self._dead = None if producer_for_dead is None else DeadLetters(producer_for_dead, settings, service)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"temper-reader-{service}")
        self._cursor = LogCursor(settings.bus, f"temper-{service}-reader", tuple(topics), start)
        self._store: ObjectStore | None = None
        self._fetch: asyncio.Future[list[RawRecord]] | None = None
        self._fetched: collections.deque[RawRecord] = collections.deque()
        self._positions: dict[tuple[str, int], int] = {}
        self._opened = False
        self._closed = False
        self.undecodable = 0
        """Records skipped because nothing here can read them."""

    async def open(self) -> None:
        """Connect and find the starting offsets; `poll` does it where the caller has not.

        Raises `BusError` when a topic is missing or the broker does not answer, `OffsetLostError` for an offset that
        is outside the log (call again, or poll, to go on from the beginning of what is left).
        """
        if self._closed:
            raise BusError(f"reader of {self._service} is closed")
        if not self._opened:
            await self._run(self._cursor.open)
            self._positions = self._cursor.positions()
            self._opened = True
        self._raise_losses()

    async def poll(self, timeout_s: float = 1.0, max_records: int = 500) -> list[Delivery[Message]]:
        """The next records, decoded; empty when none came within `timeout_s`.

        Undecodable ones go to `dead.<service>` and are passed over. Raises `OffsetLostError` once for every loss
        (a following poll goes on from the beginning of what is left), `BusError` when a dead letter cannot be
        written, `StorageError` when a claim-checked body is not there: then nothing has moved, and polling again
        tries again.
        """
        await self.open()
        records = self._take(max_records)
        if not records:
            self._fetched.extend(await self._fetch_more(timeout_s))
            self._raise_losses()
            records = self._take(max_records)
        try:
            read = await self._run(self._decode, records)
            for item in read:
                if isinstance(item, Undecodable):
                    await self._bury(item)
        except BaseException:
            self._fetched.extendleft(reversed(records))
            raise
        for record in records:
            self._positions[(record.topic, record.partition)] = record.offset + 1
        if not records:
            self._step_over_gaps()
        return [item for item in read if isinstance(item, Delivery)]

    async def to_end(
        self, timeout_s: float = 0.2, max_records: int = 1000
    ) -> AsyncIterator[Delivery[Message]]:
        """Every record up to the ends of the logs, as `poll` gives them and with what it raises."""
        while True:
            for delivery in await self.poll(timeout_s, max_records):
                yield delivery
            if self.at_end():
                return

    def positions(self) -> dict[tuple[str, int], int]:
        """The next offset to read, for every partition; empty before the reader is opened."""
        return dict(self._positions)

    def pause(self, topics: Iterable[str]) -> None:
        """Return nothing of these topics until `resume`, and fetch no more of them."""
        self._cursor.paused |= set(topics)

    def resume(self, topics: Iterable[str]) -> None:
        self._cursor.paused -= set(topics)

    def at_end(self) -> bool:
        """Whether everything has been returned that was in the logs when `poll` last came back with nothing new."""
        ends = self._cursor.ends
        return bool(ends) and all(self._positions.get(place, 0) >= end for place, end in ends.items())

    def lag(self) -> int:
        """Records between what has been returned and the ends of the logs, as last seen."""
        return sum(max(0, end - self._positions.get(place, 0)) for place, end in self._cursor.ends.items())

    def last_answer_s(self) -> float:
        """Seconds since the broker last answered; grows while it is away, whatever the client believes."""
        return time.monotonic() - self._cursor.answered

    async def close(self) -> None:
        """Release the consumer. Safe to call twice."""
        if not self._closed:
            self._closed = True
            await self._run(self._cursor.close)
            self._thread.shutdown(wait=False)

    def _take(self, most: int) -> list[RawRecord]:
        """Up to `most` fetched records of topics that are not paused, in their order."""
        paused = self._cursor.paused
        out: list[RawRecord] = []
        left: collections.deque[RawRecord] = collections.deque()
        while self._fetched and len(out) < most:
            record = self._fetched.popleft()
            (left if record.topic in paused else out).append(record)
        self._fetched.extendleft(reversed(left))
        return out

    def _step_over_gaps(self) -> None:
        """Move positions to where the consumer stands when nothing was left to return (compacted ends have gaps)."""
        waiting = {record.topic for record in self._fetched}
        for place, position in self._cursor.settled.items():
            if place[0] not in waiting:
                self._positions[place] = max(self._positions[place], position)

    async def _fetch_more(self, timeout_s: float) -> list[RawRecord]:
        # A cancelled poll must not lose what its thread goes on to fetch: the next poll waits for the same fetch.
        if self._fetch is None:
            self._fetch = asyncio.get_running_loop().run_in_executor(
                self._thread, self._cursor.fetch, timeout_s
            )
        try:
            records = await asyncio.shield(self._fetch)
        except asyncio.CancelledError:
            raise
        except BaseException:
            self._fetch = None
            raise
        self._fetch = None
        return records

    def _raise_losses(self) -> None:
        if self._cursor.losses:
            loss: OffsetLostError = self._cursor.losses.pop(0)
            self._positions[(loss.topic, loss.partition)] = loss.continues_at
            _log.error(
                "records lost",
                topic=loss.topic,
                partition=loss.partition,
                wanted=loss.wanted,
                continues_at=loss.continues_at,
            )
            raise loss

    def _decode(self, records: list[RawRecord]) -> Read:
        out: Read = []
        for record in records:
            try:
                envelope = open_envelope(record)
                body = self._redeem(envelope.claim) if envelope.claim else None
                out.append(decode_record(record, envelope, body))
            except ContractError as error:
                out.append(Undecodable(record, error))
        return out

    def _redeem(self, ticket: str) -> bytes:
        if self._store is None:
            self._store = ObjectStore(self._settings.storage_uri)
        return claims.redeem(self._store, ticket)

    async def _bury(self, item: Undecodable) -> None:
        if self._dead is not None:
            await self._dead.send(item.record, item.error)
        self.undecodable += 1
        _log.error("undecodable record", position=str(item.record.position), error=str(item.error))

    async def _run(self, function: Any, *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)
