"""What happens when partitions come and go.

Invariant: before a partition is given up, its running handlers get up to `bus.drain_s` to finish, and what is
finished is committed; heartbeats go on meanwhile, because waiting is done by awaiting on the library's own loop. A
partition that is already lost is dropped at once: whoever has it now must not be overwritten.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import structlog
from kafka.consumer.subscription_state import AsyncConsumerRebalanceListener

from shared.bus import client_quirks
from shared.bus.commits import Committer

if TYPE_CHECKING:
    from shared.bus.poll_thread import PollThread

_log = structlog.get_logger(__name__)
_LOOK_S = 0.01
_COMMIT_S = 5.0


class RebalanceListener(AsyncConsumerRebalanceListener):  # type: ignore[misc]
    """Called on the consumer's own IO loop while the poll thread waits inside `poll` (or `close`)."""

    def __init__(self, thread: PollThread, consumer: Any, commits: Committer) -> None:
        self._thread = thread
        self._consumer = consumer
        self._commits = commits

    async def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
        new = [place for place in assigned if place not in self._thread.owned]
        self._thread.gain(new)
        if new:
            _log.info("partitions assigned", group=self._thread.plan.group, count=len(new))

    async def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
        leaving = [self._thread.owned[place] for place in revoked if place in self._thread.owned]
        if not leaving:
            return
        drained = threading.Event()
        self._thread.sink.revoke(leaving, drained)
        deadline = time.monotonic() + self._thread.plan.bus.drain_s
        while not drained.is_set() and time.monotonic() < deadline:
            await self._sleep()
        if not drained.is_set():
            running = sum(owned.running for owned in leaving)
            _log.warning("drain cut short", group=self._thread.plan.group, running=running)
            self._thread.sink.abandon(leaving)
        self._thread.collect()
        await self._commit(leaving)
        self._thread.drop([owned.place for owned in leaving])
        _log.info("partitions revoked", group=self._thread.plan.group, count=len(leaving))

    async def on_partitions_lost(self, lost: Iterable[Any]) -> None:
        gone = self._thread.drop(list(lost))
        if gone:
            self._thread.sink.revoke(gone, threading.Event())
            self._thread.sink.abandon(gone)
            _log.warning("partitions lost", group=self._thread.plan.group, count=len(gone))

    async def _commit(self, leaving: list[Any]) -> None:
        states = self._commits.offsets(leaving)
        if not states:
            return
        sent = self._consumer.commit_async(self._commits.to_kafka(states), callback=lambda *_: None)
        deadline = time.monotonic() + _COMMIT_S
        while not sent.is_done and time.monotonic() < deadline:
            await self._sleep()
        if sent.succeeded():
            self._commits.acknowledge(states)
        else:
            _log.warning("commit before revocation failed: finished records may be handled again")

    async def _sleep(self) -> None:
        await client_quirks.sleep(self._consumer, _LOOK_S)
