"""One record through its handler, and what happens when that fails.

Invariant: `process` says "finished" only after the handler has returned, or after the failed record has been
acknowledged in a retry topic or as a dead letter. While that write fails, its partition stands still; nothing is
dropped. No record is retried without a delay, and what cannot be read is never retried.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import structlog

from shared.bus import claims
from shared.bus.deadletters import DeadLetters, origin_of
from shared.bus.delivery import Delivery, RawRecord, decode_record, open_envelope
from shared.bus.owned import Work
from shared.bus.producer import TypedProducer
from shared.bus.records import DELIVERY, RETRY_GROUP, delivery_count, header, replaced
from shared.bus.retry import RetryPolicy
from shared.bus.topics import TopicNames
from shared.contracts.headers import Headers
from shared.errors import ContractError
from shared.settings import Settings
from shared.storage import ObjectStore

Handler = Callable[[Delivery[Any]], Awaitable[None]]
Exhausted = Callable[[Delivery[Any], Exception], Awaitable[None]]
_log = structlog.get_logger(__name__)
_FIRST_BACKOFF_S = 0.5
_LONGEST_BACKOFF_S = 10.0


@dataclass(slots=True)
class Counts:
    failures: int = 0
    """Attempts that failed."""
    retried: int = 0
    dead: int = 0
    skipped: int = 0
    """Records of other runs or groups."""
    blocked: dict[str, str] = field(default_factory=dict)
    """Records at which a partition stands still, and why."""


class Processor:
    """Runs on the asyncio loop; `block`, `unblock` and `detach` are the dispatcher's."""

    def __init__(
        self,
        settings: Settings,
        service: str,
        group: str,
        *,
        handler: Handler,
        producer: TypedProducer,
        on_exhausted: Exhausted | None = None,
        accept: Callable[[Headers], bool] | None = None,
    ) -> None:
        self._settings = settings
        self._topics = TopicNames(settings.bus.namespace)
        self._service = service
        self._group = group
        self._handler = handler
        self._producer = producer
        self._on_exhausted = on_exhausted
        self._accept = accept
        self._policy = RetryPolicy(settings.bus.retry_delays_s, settings.bus.max_attempts)
        self._dead = DeadLetters(producer, settings, service)
        self._store: ObjectStore | None = None
        self.counts = Counts()
        self.block: Callable[[Work], None] = lambda work: None
        self.unblock: Callable[[Work], None] = lambda work: None
        self.detach: Callable[[Work, Awaitable[bool]], None] | None = None

    async def process(self, work: Work) -> bool:
        """True when the record is finished; False when a detached task goes on to write its failure."""
        delivery: Delivery[Any] | None = None
        try:
            if work.owned.delay_s and header(work.record.headers, RETRY_GROUP) != self._group:
                self.counts.skipped += 1
                return True
            if self._accept is not None and not self._accept(Headers.from_kafka(work.record.headers)):
                self.counts.skipped += 1
                return True
            envelope = open_envelope(work.record)
            body = await self._redeem(envelope.claim) if envelope.claim else None
            delivery = decode_record(work.record, envelope, body)
            await self._handler(delivery)
        except Exception as error:  # noqa: BLE001  (whatever a handler raises is a failed attempt, never the worker's end)
            return await self._failed(work, delivery, error)
        return True

    async def _redeem(self, ticket: str) -> bytes:
        if self._store is None:
            self._store = ObjectStore(self._settings.storage_uri)
        return await asyncio.to_thread(claims.redeem, self._store, ticket)

    async def _failed(self, work: Work, delivery: Delivery[Any] | None, error: Exception) -> bool:
        self.counts.failures += 1
        unreadable = delivery is None and isinstance(error, ContractError)
        attempt = 1 if unreadable else self._attempt(work.record)
        delay_s = None if unreadable else self._policy.delay_after(attempt, error)
        _log.warning(
            "attempt failed",
            position=str(work.record.position),
            origin=origin_of(work.record),
            attempt=attempt,
            error_type=type(error).__name__,
            error=str(error),
            next="dead letter" if delay_s is None else f"retry in {delay_s:g} s",
        )
        failure = _Failure(work, delivery, error, attempt, delay_s)
        try:
            await self._write(failure)
        except Exception as reason:  # noqa: BLE001  (the broker, the store, or `on_exhausted`: all may pass)
            return self._stand_still(failure, reason)
        return True

    def _attempt(self, record: RawRecord) -> int:
        try:
            return delivery_count(record.headers)
        except ContractError:
            return self._policy.max_attempts  # nobody can say how often: this was the last time

    async def _write(self, failure: _Failure) -> None:
        """The failure becomes a retry or a dead letter, acknowledged."""
        record, error = failure.work.record, failure.error
        if failure.delay_s is not None:
            await self._producer.send_raw(
                self._topics.retries(self._service, failure.delay_s),
                record.key,
                record.value,
                retry_headers(record, error, failure.attempt + 1, failure.delay_s, self._group),
            )
            self.counts.retried += 1
            return
        if self._on_exhausted is not None and failure.delivery is not None and not failure.told:
            await self._on_exhausted(failure.delivery, error)
            failure.told = True
        await self._dead.send(record, error, failure.attempt)
        self.counts.dead += 1
        _log.error("dead letter", topic=self._dead.topic, origin=origin_of(record), error=str(error))

    def _stand_still(self, failure: _Failure, reason: Exception) -> bool:
        self.block(failure.work)
        assert self.detach is not None
        self.detach(failure.work, self._keep_writing(failure, reason))
        return False

    async def _keep_writing(self, failure: _Failure, reason: Exception) -> bool:
        place = failure.work.record.position
        name = str(place)
        backoff_s = _FIRST_BACKOFF_S
        try:
            while True:
                self.counts.blocked[name] = f"its failure cannot be written: {reason}"
                _log.error("partition stands still", position=name, reason=str(reason))
                await asyncio.sleep(backoff_s)
                backoff_s = min(2 * backoff_s, _LONGEST_BACKOFF_S)
                try:
                    await self._write(failure)
                except Exception as again:  # noqa: BLE001  (as above)
                    reason = again
                else:
                    return True
        finally:
            self.counts.blocked.pop(name, None)
            self.unblock(failure.work)


@dataclass(slots=True)
class _Failure:
    work: Work
    delivery: Delivery[Any] | None
    error: Exception
    attempt: int
    delay_s: float | None
    """None: a dead letter."""
    told: bool = False
    """Whether `on_exhausted` has returned."""


def retry_headers(
    record: RawRecord, error: BaseException, attempt: int, delay_s: float, group: str
) -> list[tuple[str, bytes]]:
    """The headers of `record` for its next delivery. The trace context stays that of the first attempt.

    `not_before_ms` is for people: what counts is the broker's append time and the topic's delay.
    """
    return replaced(
        record.headers,
        {
            DELIVERY: str(attempt),
            RETRY_GROUP: group,
            "origin": origin_of(record),
            "not_before_ms": str(round((time.time() + delay_s) * 1000)),
            "error.type": type(error).__name__,
            "error.message": str(error)[:500],
        },
    )
