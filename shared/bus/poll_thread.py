"""The poll thread: the only thread that calls the consumer.

Invariant: it polls at least every 200 ms, full buffers or not, so that a long job never costs the membership; it
commits only partitions it owns, and only what their trackers call finished. What is paused is derived afresh before
every poll, so a partition gained in a rebalance is paused like the others.
"""

from __future__ import annotations

import collections
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import structlog

from shared.bus import client_quirks
from shared.bus.commits import Committer
from shared.bus.connect import bus_error, consumer_options
from shared.bus.delivery import RawRecord
from shared.bus.handover import Handover
from shared.bus.log_cursor import OffsetLostError
from shared.bus.meter import BufferMeter
from shared.bus.owned import Owned, Work
from shared.bus.pausing import BufferLimits, topics_to_pause
from shared.bus.placement import Placement
from shared.bus.progress import Progress
from shared.bus.rebalance import RebalanceListener
from shared.errors import BusError
from shared.settings import BusSettings

_log = structlog.get_logger(__name__)
POLL_S = 0.2
_PAUSED_POLL_S = 0.02
_LAG_EVERY_S = 2.0
_MOST_AHEAD = 50_000
"""Records of one partition that may be taken beyond its first unfinished one."""
_SILENT_S = 15.0
_LAST_COMMIT_S = 5.0


@dataclass(frozen=True, slots=True)
class PollPlan:
    """What to consume, and as whom."""

    bus: BusSettings
    client_id: str
    group: str
    topics: tuple[str, ...]
    delays: Mapping[str, float]
    """Retry topics and their delays, seconds."""
    limits: BufferLimits


class Sink(Protocol):
    """Where records go. Called in the poll thread; the work is done on the asyncio loop."""

    def offer(self, batch: list[Work]) -> None: ...
    def revoke(self, places: Iterable[Owned], drained: threading.Event) -> None: ...
    def abandon(self, places: Iterable[Owned]) -> None: ...
    def lost(self, loss: OffsetLostError) -> None: ...
    def ended(self, error: BaseException | None) -> None: ...


class PollThread(threading.Thread):
    """Start it, feed `finished`, then `drain()` and `finish()`; `sink.ended` is its last word."""

    def __init__(
        self,
        plan: PollPlan,
        sink: Sink,
        meter: BufferMeter,
        finished: collections.deque[tuple[Owned, int]],
    ) -> None:
        super().__init__(name=f"temper-poll-{plan.client_id}", daemon=True)
        self.plan = plan
        self.sink = sink
        self.owned: dict[Any, Owned] = {}
        self.progress = Progress(time.monotonic(), _SILENT_S)
        self.lag = 0
        self.paused_for_load: frozenset[str] = frozenset()
        self._meter = meter
        self._handover = Handover(plan.group, plan.topics, meter, sink.offer)
        self._finished = finished
        self._consumer: Any = None
        self._all_paused = False
        self._lag_at = 0.0
        self._draining = False
        self._finishing = threading.Event()
        self._wake = threading.Event()

    # Called from the asyncio loop.

    def has_room(self, topic: str) -> None:
        """A buffer has shrunk: fetch on if its topic was paused for it."""
        if topic in self.paused_for_load and self.plan.limits.is_low(self._meter.load(topic)):
            self._wake.set()

    def drain(self) -> None:
        """Fetch nothing more; go on polling, so that the membership lives while handlers finish."""
        self._draining = True
        self._wake.set()

    def finish(self) -> None:
        """Commit what is finished, leave the group, end."""
        self._finishing.set()
        self._wake.set()

    # The thread.

    def run(self) -> None:
        try:
            self._open()
            while not self._finishing.is_set():
                self._turn()
            error: BaseException | None = None
        except BaseException as caught:  # noqa: BLE001  (handed to the loop, which raises it)
            error = caught
        try:
            self._leave(commit=error is None)
        except Exception as caught:  # noqa: BLE001  (as above)
            error = error or bus_error("the consumer group could not be left cleanly", caught)
        self.sink.ended(error)

    def collect(self) -> None:
        """Take what the handlers have finished into the trackers."""
        finished = self._finished
        while finished:
            owned, offset = finished.popleft()
            if owned.active:
                owned.tracker.finish(offset)

    def gain(self, places: Iterable[Any]) -> None:
        """Partitions were assigned: their commits are read before anything is fetched of them."""
        for place in places:
            self.owned[place] = Owned(place, self.plan.delays.get(place.topic, 0.0))
            # A stand-in position keeps the library from choosing one itself; nothing is fetched while it is paused.
            self._consumer.seek(place, 0)
            self._consumer.pause(place)

    def drop(self, places: Iterable[Any]) -> list[Owned]:
        """Partitions were taken away: results that still come for them count for nothing."""
        gone = [self.owned.pop(place) for place in places if place in self.owned]
        for owned in gone:
            owned.active = False
            owned.held.clear()
        return gone

    def _open(self) -> None:
        from kafka import KafkaConsumer
        from kafka.errors import KafkaError

        bus = self.plan.bus
        try:
            self._consumer = KafkaConsumer(**_group_options(self.plan))
        except (KafkaError, OSError) as error:
            raise bus_error(f"no consumer for {bus.bootstrap_servers}", error) from error
        client_quirks.read_raw_records(self._consumer)
        self._commits = Committer(self._consumer)
        self._placement = Placement(self._consumer, self._commits)
        missing = client_quirks.load_metadata(self._consumer, self.plan.topics)
        if missing:
            raise BusError(f"topic {missing[0]} does not exist: run `temper topics apply`")
        self._consumer.subscribe(
            topics=list(self.plan.topics), listener=RebalanceListener(self, self._consumer, self._commits)
        )

    def _turn(self) -> None:
        now = time.monotonic()
        self.collect()
        self._commits.maybe_commit(self.owned.values(), now)
        self._handover.release_due(self.owned.values())
        self._place_new()
        self._apply_pauses()
        batches = self._poll()
        client_quirks.finish_join(self._consumer)
        if batches:
            self.progress.records_came(time.monotonic())
            self._handover.take(batches, self.owned)
        if now - self._lag_at >= _LAG_EVERY_S:
            self._lag_at = now
            self._measure_lag()

    def _poll(self) -> dict[Any, list[RawRecord]]:
        from kafka.errors import LogTruncationError, OffsetOutOfRangeError

        joining = client_quirks.join_pending(self._consumer)
        if self._all_paused and not joining:
            # Everything is paused: the library would sleep unwakeably, so poll for the membership and wait here.
            batches = self._consumer.poll(timeout_ms=0)
            if not batches:
                self._wake.wait(self._handover.next_due_s(self.owned.values(), POLL_S))
                self._wake.clear()
            return dict(batches)
        timeout_s = POLL_S
        if not joining:
            timeout_s = min(
                _PAUSED_POLL_S if self.paused_for_load else POLL_S,
                self._handover.next_due_s(self.owned.values(), POLL_S),
            )
        try:
            return dict(self._consumer.poll(timeout_ms=max(1, round(timeout_s * 1000))))
        except OffsetOutOfRangeError as error:
            self._replace(error.args[0])
        except LogTruncationError as error:
            self._replace(error.divergent_offsets)
        except Exception as error:
            if not _passes(error):
                raise bus_error(f"group {self.plan.group} cannot consume", error) from error
            _log.warning("poll failed, trying again", error_type=type(error).__name__, error=str(error))
            self._wake.wait(POLL_S)
            self._wake.clear()
        return {}

    def _place_new(self) -> None:
        new = [owned for owned in self.owned.values() if not owned.placed]
        if new:
            for loss in self._placement.place(new):
                self.sink.lost(loss)

    def _replace(self, places: Iterable[Any]) -> None:
        """Positions outside the log: find the nearest records that are left, loudly."""
        known = [self.owned[place] for place in places if place in self.owned]
        for loss in self._placement.relocate(known):
            self.sink.lost(loss)

    def _apply_pauses(self) -> None:
        self.paused_for_load = topics_to_pause(self._meter.loads(), self.paused_for_load, self.plan.limits)
        wanted = {
            place
            for place, owned in self.owned.items()
            if self._draining
            or not owned.placed
            or owned.held
            or place.topic in self.paused_for_load
            or owned.tracker.outstanding > _MOST_AHEAD
        }
        # The library's own view is compared, not a note of it: a rebalance may have changed it.
        paused = self._consumer.paused()
        if wanted - paused:
            self._consumer.pause(*(wanted - paused))
        if paused - wanted:
            self._consumer.resume(*(paused - wanted))
        self._all_paused = bool(self.owned) and len(wanted) == len(self.owned)

    def _measure_lag(self) -> None:
        """Ask the broker for the ends: the lag, and the proof that it still answers."""
        placed = [owned for owned in self.owned.values() if owned.placed]
        ends = self._placement.ends(placed)
        if ends is None:
            return
        self.lag = sum(max(0, ends[owned.place] - owned.tracker.prefix) for owned in placed)
        paused = self._consumer.paused()
        fetchable = sum(
            max(0, ends[owned.place] - owned.tracker.position)
            for owned in placed
            if owned.place not in paused
        )
        self.progress.broker_answered(time.monotonic(), fetchable)

    def _leave(self, commit: bool) -> None:
        if self._consumer is None:
            return
        deadline = time.monotonic() + _LAST_COMMIT_S
        while commit:
            self.collect()
            try:
                self._commits.commit_now(self.owned.values())
                break
            except Exception as error:  # noqa: BLE001  (leaving goes on; what it costs is said)
                if not _passes(error) or time.monotonic() > deadline:
                    _log.warning(
                        "last commit failed: finished records may be handled again",
                        error_type=type(error).__name__,
                    )
                    break
                # Usually a rebalance that polling completes; it may also take partitions away, with their own commit.
                self._consumer.poll(timeout_ms=100)
                client_quirks.finish_join(self._consumer)
        self.drop(list(self.owned))
        self._consumer.close(autocommit=False, timeout_ms=3000)


def _group_options(plan: PollPlan) -> dict[str, Any]:
    from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
    from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor

    from shared.bus.assignor import ByTopicAssignor

    bus = plan.bus
    cooperative = bus.rebalance == "cooperative"
    return {
        **consumer_options(bus, plan.client_id),
        "group_id": plan.group,
        "session_timeout_ms": bus.session_timeout_ms,
        "heartbeat_interval_ms": max(100, min(1000, bus.session_timeout_ms // 4)),
        # How long a rebalance waits for a member: its bounded drain, and time to spare.
        "max_poll_interval_ms": max(60_000, round(2000 * bus.drain_s) + 30_000),
        "partition_assignment_strategy": (
            # The second is what groups of earlier builds have: the broker takes what all members know.
            (ByTopicAssignor, CooperativeStickyAssignor) if cooperative else (RoundRobinPartitionAssignor,)
        ),
    }


def _passes(error: Exception) -> bool:
    """Whether polling again can help. What no waiting mends ends the worker with its reason."""
    from kafka import errors

    fatal = (
        errors.KafkaConfigurationError,
        errors.AuthorizationError,
        errors.FencedInstanceIdError,
        errors.InconsistentGroupProtocolError,
        errors.InvalidSessionTimeoutError,
        errors.InvalidGroupIdError,
        errors.GroupMaxSizeReachedError,
        errors.IllegalStateError,
        errors.UnsupportedVersionError,
    )
    return isinstance(error, errors.KafkaError | OSError | BusError) and not isinstance(error, fatal)
