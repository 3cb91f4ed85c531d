"""Dispatch on the asyncio loop: buffered work to a fixed number of lanes, in fair order.

Invariant: at most `concurrency` handlers run, and none is started of a class that is closed; no work of a revoked or blocked partition is started; every piece of
work ends in exactly one of `finished` (its offset may be committed) or dropped (it will be delivered again).
"""

from __future__ import annotations

import asyncio
import collections
import threading
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping

from shared.bus.fair_queue import FairQueue
from shared.bus.meter import BufferMeter
from shared.bus.owned import Owned, Work

Process = Callable[[Work], Awaitable[bool]]
"""Handles one record. True: finished. False: it is not, and `settle` will be called later."""
Closed = Callable[[Mapping[str, int]], Collection[str]]
"""Classes of which nothing may be started now, given how many handlers of each run."""
_YIELD_EVERY = 64


class Dispatcher:
    """Everything here runs on the asyncio loop."""

    def __init__(
        self,
        weights: Mapping[str, int],
        concurrency: int,
        process: Process,
        *,
        meter: BufferMeter,
        finished: collections.deque[tuple[Owned, int]],
        has_room: Callable[[str], None],
        closed: Closed | None = None,
    ) -> None:
        """`finished` is read by the poll thread; `has_room(topic)` is called whenever a topic's buffer shrinks. Where
        `closed` comes to say less than before for another reason than a handler's end, call `look_again`."""
        self._queue: FairQueue[Work] = FairQueue(weights)
        self._process = process
        self._meter = meter
        self._finished = finished
        self._has_room = has_room
        self._closed = closed
        self._running: collections.Counter[str] = collections.Counter()
        self._concurrency = concurrency
        self._lanes: dict[asyncio.Task[None], Work | None] = {}
        self._idle: collections.deque[asyncio.Future[None]] = collections.deque()
        self._drains: list[tuple[set[Owned], threading.Event]] = []
        self._detached: dict[Work, asyncio.Task[None]] = {}
        self._closing = False
        self.processed = 0
        self.finished_at = time.monotonic()

    def start(self) -> None:
        for index in range(self._concurrency):
            self._lanes[asyncio.create_task(self._lane(), name=f"lane-{index}")] = None

    @property
    def in_flight(self) -> int:
        return sum(work is not None for work in self._lanes.values()) + len(self._detached)

    def running(self) -> Mapping[str, int]:
        """Handlers at work in lanes, by class."""
        return self._running

    def look_again(self) -> None:
        """A class may be open that was closed."""
        while self._idle:
            self._wake_one()

    def lane_error(self) -> BaseException | None:
        """What ended a lane; nothing may, so it is a bug and ends the worker."""
        for lane in self._lanes:
            if lane.done() and not lane.cancelled() and lane.exception() is not None:
                return lane.exception()
        return None

    def offer(self, batch: Iterable[Work]) -> None:
        now = time.monotonic()
        for work in batch:
            owned = work.owned
            if owned.revoked:
                self._drop_buffered(work)
            elif owned.blocks:
                owned.parked.append(work)
            else:
                self._queue.push(work.lane, work, now)
                if self._idle:
                    self._wake_one()

    def revoke(self, places: Iterable[Owned], drained: threading.Event) -> None:
        """Start nothing more of these partitions; set `drained` once nothing of them runs."""
        leaving = set(places)
        for owned in leaving:
            owned.revoked = True
            for work in owned.parked:
                self._drop_buffered(work)
            owned.parked.clear()
        for work in self._queue.remove(lambda work: work.owned in leaving):
            self._drop_buffered(work)
        self._drains.append((leaving, drained))
        self._check_drains()

    def abandon(self, places: Iterable[Owned]) -> None:
        """Cancel what still runs of these partitions: somebody else will do it again."""
        leaving = set(places)
        for lane, work in self._lanes.items():
            if work is not None and work.owned in leaving:
                work.owned.revoked = True
                lane.cancel()
        for work, task in list(self._detached.items()):
            if work.owned in leaving:
                task.cancel()

    def block(self, work: Work) -> None:
        """The partition of `work` stands still until `unblock`; what is buffered of it is put aside."""
        owned = work.owned
        owned.blocks += 1
        owned.parked.extend(self._queue.remove(lambda other: other.owned is owned))

    def unblock(self, work: Work) -> None:
        owned = work.owned
        owned.blocks -= 1
        if not owned.blocks and owned.parked and not owned.revoked:
            parked, owned.parked = owned.parked, []
            self.offer(parked)

    def detach(self, work: Work, rest: Awaitable[bool]) -> None:
        """Go on with `work` outside its lane (it waits for a broker, not for the handler)."""
        self._detached[work] = asyncio.create_task(self._run_detached(work, rest))

    async def close(self, drain_s: float) -> bool:
        """Start nothing more, wait for what runs, cancel the rest after `drain_s`. True when nothing was cancelled."""
        self._closing = True
        while self._idle:
            self._wake_one()
        tasks = [*self._lanes, *self._detached.values()]
        pending: set[asyncio.Task[None]] = set()
        if tasks:
            _, pending = await asyncio.wait(tasks, timeout=drain_s)
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        return not pending

    async def _lane(self) -> None:
        me = asyncio.current_task()
        assert me is not None
        served = 0
        while not self._closing:
            closed = self._closed(self._running) if self._closed is not None else ()
            work = self._queue.pop(time.monotonic(), closed)
            if work is None:
                await self._wait()
                continue
            self._take(work)
            work.owned.running += 1
            self._lanes[me] = work
            self._running[work.lane] += 1
            try:
                done: bool | None = await self._process(work)
            except asyncio.CancelledError:
                if not work.owned.revoked or self._closing:
                    self._lanes[me] = None
                    self._settle(work, done=False)
                    raise
                me.uncancel()
                done = None
            finally:
                self._running[work.lane] -= 1
            self._lanes[me] = None
            if done or done is None:
                self._settle(work, done=bool(done))
            if self._closed is not None and self._idle and len(self._queue):
                self._wake_one()  # this lane may go on with another class than the one that it has made room in
            served += 1
            if served % _YIELD_EVERY == 0:
                # A handler that never waits must not keep the loop from everybody else.
                await asyncio.sleep(0)

    async def _run_detached(self, work: Work, rest: Awaitable[bool]) -> None:
        done = False
        try:
            done = await rest
        finally:
            del self._detached[work]
            self._settle(work, done)

    def _settle(self, work: Work, done: bool) -> None:
        owned = work.owned
        owned.running -= 1
        if done:
            self.processed += 1
            self.finished_at = time.monotonic()
            self._finished.append((owned, work.record.offset))
        if self._drains and not owned.running:
            self._check_drains()

    def _check_drains(self) -> None:
        for leaving, drained in list(self._drains):
            if not any(owned.running for owned in leaving):
                drained.set()
                self._drains.remove((leaving, drained))

    def _take(self, work: Work) -> None:
        topic = work.record.topic
        self._meter.taken(topic, work.size)
        self._has_room(topic)

    _drop_buffered = _take

    def _wake_one(self) -> None:
        waiter = self._idle.popleft()
        if not waiter.done():
            waiter.set_result(None)

    async def _wait(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._idle.append(waiter)
        await waiter
