"""The worker loop: records of a consumer group, handled on asyncio, each finished before it is committed.

Invariant (1 of the design): a record's offset is committed only after its handler has returned, that is after its
outputs were acknowledged, and only as part of the contiguous finished prefix of its partition; or after the record
itself was acknowledged in a retry topic or as a dead letter. `run` ends with nothing running and the group left.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from shared.bus.dispatcher import Closed, Dispatcher
from shared.bus.log_cursor import OffsetLostError
from shared.bus.losses import LossRecorder
from shared.bus.meter import BufferMeter
from shared.bus.owned import Owned, Work
from shared.bus.pausing import BufferLimits
from shared.bus.poll_thread import PollPlan, PollThread
from shared.bus.processing import Exhausted, Handler, Processor
from shared.bus.producer import TypedProducer
from shared.bus.subscriptions import Subscription, retry_topics
from shared.contracts.headers import Headers
from shared.errors import BusError
from shared.settings import Settings

_log = structlog.get_logger(__name__)
_BUFFER_BYTES = 32 * 1024 * 1024
_LEAVE_S = 15.0


@dataclass(frozen=True, slots=True)
class WorkerStats:
    """One look at a worker."""

    in_flight: int
    buffered: int
    """Records fetched and not yet started."""
    processed: int
    """Records finished, in whatever way."""
    failures: int
    """Attempts that failed."""
    retried: int
    dead: int
    skipped: int
    lost: int
    """Losses to retention that were reported."""
    lag: int
    """Records between the finished prefix and the end of the log, over the owned partitions."""
    partitions: int
    paused: tuple[str, ...]
    """Topics that are not fetched because their buffers are full."""
    blocked: tuple[str, ...]
    """Partitions that stand still because a failure cannot be written, and why."""
    last_progress_s: float
    """Seconds since a record was finished, or since there was last nothing to do."""
    problem: str
    """Why the consumer is not well; empty when it is."""


class Worker:
    """One member of one consumer group.

    `subscriptions`: topics and their weights (`shared.bus.subscriptions` makes them). The retry topics of `service`
    are consumed beside them. `handler` sends its outputs through `producer`, awaited, and returns; what it raises
    fails the attempt. After the last attempt `on_exhausted(delivery, error)` is awaited, then the record becomes a
    dead letter. `accept` looks at headers before anything is decoded; what it refuses is finished and counted.
    `closed(handlers at work by topic)` names topics of which nothing may be started now (see `look_again`).
    `buffer_records`: how many records of one topic may wait in memory before fetching pauses (a fetch may pass it).
    """

    def __init__(  # noqa: PLR0917  (what every service gives, in the order of the page that binds them)
        self,
        settings: Settings,
        service: str,
        worker_id: str,
        subscriptions: Sequence[Subscription],
        handler: Handler,
        producer: TypedProducer,
        *,
        concurrency: int,
        group: str,
        on_exhausted: Exhausted | None = None,
        accept: Callable[[Headers], bool] | None = None,
        buffer_records: int = 2000,
        closed: Closed | None = None,
    ) -> None:
        delays = retry_topics(settings, service)
        weights: Mapping[str, int] = {
            **dict.fromkeys(delays, 1),
            **{item.topic: item.weight for item in subscriptions},
        }
        self._worker_id = worker_id
        self._drain_s = settings.bus.drain_s
        self._meter = BufferMeter(weights)
        self._finished: collections.deque[tuple[Owned, int]] = collections.deque()
        self._processor = Processor(
            settings,
            service,
            group,
            handler=handler,
            producer=producer,
            on_exhausted=on_exhausted,
            accept=accept,
        )
        self._losses = LossRecorder(settings, service, producer)
        self._plan = PollPlan(
            bus=settings.bus,
            client_id=f"temper-{worker_id}",
            group=group,
            topics=tuple(weights),
            delays=delays,
            limits=BufferLimits(records=max(concurrency, buffer_records), bytes=_BUFFER_BYTES),
        )
        self._thread = PollThread(self._plan, _LoopSink(self), self._meter, self._finished)
        self._dispatcher = Dispatcher(
            weights,
            concurrency,
            self._processor.process,
            meter=self._meter,
            finished=self._finished,
            has_room=self._thread.has_room,
            closed=closed,
        )
        self._processor.block = self._dispatcher.block
        self._processor.unblock = self._dispatcher.unblock
        self._processor.detach = self._dispatcher.detach
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended: asyncio.Future[None] | None = None
        self._idle_at = time.monotonic()

    async def run(self, stop: asyncio.Event) -> None:
        """Consume until `stop` is set; then finish what runs (`bus.drain_s` at most), commit, and leave the group.

        Raises `BusError` for what no waiting mends (no broker, no right to read, a group of another protocol).
        """
        self._loop = asyncio.get_running_loop()
        self._ended = self._loop.create_future()
        self._dispatcher.start()
        self._thread.start()
        stopping: asyncio.Future[Any] = asyncio.ensure_future(stop.wait())
        try:
            while not stopping.done() and not self._ended.done():
                await asyncio.wait({stopping, self._ended}, timeout=1.0, return_when=asyncio.FIRST_COMPLETED)
                error = self._dispatcher.lane_error()
                if error is not None:
                    raise BusError(f"worker {self._worker_id}: a lane ended: {error!r}") from error
        finally:
            stopping.cancel()
            await self._shut_down()
        self._ended.result()

    def stats(self) -> WorkerStats:
        now = time.monotonic()
        counts = self._processor.counts
        in_flight, buffered = self._dispatcher.in_flight, self._meter.records()
        if not in_flight and not buffered:
            self._idle_at = now
        return WorkerStats(
            in_flight=in_flight,
            buffered=buffered,
            processed=self._dispatcher.processed,
            failures=counts.failures,
            retried=counts.retried,
            dead=counts.dead,
            skipped=counts.skipped,
            lost=self._losses.count,
            lag=self._thread.lag,
            partitions=len(self._thread.owned),
            paused=tuple(sorted(self._thread.paused_for_load)),
            blocked=tuple(f"{place}: {reason}" for place, reason in counts.blocked.items()),
            last_progress_s=max(0.0, now - max(self._idle_at, self._dispatcher.finished_at)),
            problem=self._thread.progress.problem(now),
        )

    def running(self) -> Mapping[str, int]:
        """Handlers at work, by topic; a retry counts for the topic that its record came from."""
        return self._dispatcher.running()

    def look_again(self) -> None:
        """A topic may be open that was closed."""
        self._dispatcher.look_again()

    def health(self) -> bool:
        """False while the broker does not answer, records wait and none comes, or a partition stands still."""
        return (
            self._thread.is_alive()
            and not self._thread.progress.problem(time.monotonic())
            and not self._processor.counts.blocked
        )

    async def _shut_down(self) -> None:
        assert self._ended is not None
        self._thread.drain()
        if not await self._dispatcher.close(self._drain_s):
            _log.warning(
                "drain cut short: unfinished records will be delivered again", worker=self._worker_id
            )
        await self._losses.close()
        self._thread.finish()
        await asyncio.wait({self._ended}, timeout=_LEAVE_S)
        if not self._ended.done():
            self._ended.set_exception(
                BusError(f"worker {self._worker_id} could not leave its group within {_LEAVE_S:g} s")
            )

    def post(self, function: Callable[..., None], *arguments: Any) -> None:
        """Run something on the asyncio loop, from the poll thread."""
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to be told
            self._loop.call_soon_threadsafe(function, *arguments)

    def end(self, error: BaseException | None) -> None:
        if self._ended is None or self._ended.done():
            return
        if error is None:
            self._ended.set_result(None)
        else:
            self._ended.set_exception(error)


class _LoopSink:
    """Carries the poll thread's calls to the asyncio loop, one hand-over per batch."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def offer(self, batch: list[Work]) -> None:
        self._worker.post(self._worker._dispatcher.offer, batch)

    def revoke(self, places: Iterable[Owned], drained: threading.Event) -> None:
        self._worker.post(self._worker._dispatcher.revoke, list(places), drained)

    def abandon(self, places: Iterable[Owned]) -> None:
        self._worker.post(self._worker._dispatcher.abandon, list(places))

    def lost(self, loss: OffsetLostError) -> None:
        self._worker.post(self._worker._losses.report, loss)

    def ended(self, error: BaseException | None) -> None:
        self._worker.post(self._worker.end, error)
