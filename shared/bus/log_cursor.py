"""The blocking half of `LogReader`: one consumer with fixed partitions, used by one thread.

Invariant: every partition has an explicit position before the first fetch, and a position outside the log becomes an
`OffsetLostError` in `losses` before anything is read past it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Literal

from shared.bus import client_quirks
from shared.bus.connect import bus_error, consumer_options
from shared.bus.delivery import RawRecord
from shared.errors import BusError
from shared.settings import BusSettings

Place = tuple[str, int]
_ENDS_EVERY_S = 1.0
_ENDS_IDLE_S = 0.05
_CALL_MS = 10_000


class OffsetLostError(BusError):
    """Records between `wanted` and `continues_at` are gone (retention, or a log that was cut or replaced)."""

    def __init__(self, topic: str, partition: int, wanted: int, first: int, end: int) -> None:
        self.topic = topic
        self.partition = partition
        self.wanted = wanted
        self.continues_at = first
        """Where reading goes on: the beginning of what is left (duplicates beat losses)."""
        if wanted < first:
            what = f"{first - wanted:,} records are lost to retention: read sooner, or raise its retention.ms"
        else:
            what = (
                f"the log ends at {end}: it was cut or replaced; do not mix a run with another broker's data"
            )
        super().__init__(f"{topic}/{partition}: offset {wanted} is not in [{first}, {end}]: {what}")


class LogCursor:
    """Blocking; every method but the attributes is called from one thread."""

    def __init__(
        self,
        bus: BusSettings,
        client_id: str,
        topics: tuple[str, ...],
        start: Mapping[Place, int] | Literal["earliest", "end"],
    ) -> None:
        self._bus = bus
        self._client_id = client_id
        self._topics = topics
        self._start = start
        self._consumer: Any = None
        self._fetch_paused: set[str] = set()
        self._ends_at = 0.0
        self.paused: set[str] = set()
        """Topics not to fetch; set from any thread, applied before the next fetch."""
        self.ends: dict[Place, int] = {}
        self.settled: dict[Place, int] = {}
        """Positions of partitions that had nothing more to give at the last fetch (they step over compacted gaps)."""
        self.losses: list[OffsetLostError] = []
        self.answered = time.monotonic()

    def open(self) -> None:
        """Raises `BusError` when a topic does not exist or the broker does not answer."""
        from kafka import KafkaConsumer, TopicPartition
        from kafka.errors import KafkaError

        try:
            if self._consumer is None:
                self._consumer = KafkaConsumer(group_id=None, **consumer_options(self._bus, self._client_id))
                client_quirks.read_raw_records(self._consumer)
            partitions: list[Any] = []
            for topic in self._topics:
                found = self._consumer.partitions_for_topic(topic)
                if not found:
                    raise BusError(f"topic {topic} does not exist: run `temper topics apply`")
                partitions.extend(TopicPartition(topic, number) for number in sorted(found))
            self._consumer.assign(partitions)
            first = self._consumer.beginning_offsets(partitions, timeout_ms=_CALL_MS)
            end = self._consumer.end_offsets(partitions, timeout_ms=_CALL_MS)
        except (KafkaError, OSError) as error:
            raise bus_error(f"the logs at {self._bus.bootstrap_servers} cannot be opened", error) from error
        for partition in partitions:
            wanted = self._wanted(partition, first[partition], end[partition])
            self._seek(partition, wanted, first[partition], end[partition])
        self.ends = {tuple(partition): offset for partition, offset in end.items()}
        self.answered = self._ends_at = time.monotonic()

    def positions(self) -> dict[Place, int]:
        return {tuple(place): self._consumer.position(place) for place in self._consumer.assignment()}

    def fetch(self, timeout_s: float) -> list[RawRecord]:
        """Raises `BusError` for what the library cannot recover from by itself."""
        from kafka.errors import KafkaError, LogTruncationError, OffsetOutOfRangeError

        self._apply_pauses()
        try:
            batches = self._consumer.poll(timeout_ms=max(0, round(timeout_s * 1000)))
        except OffsetOutOfRangeError as error:
            self._relocate(dict(error.args[0]))
            return []
        except LogTruncationError as error:
            self._relocate({place: self._consumer.position(place) for place in error.divergent_offsets})
            return []
        except (KafkaError, OSError) as error:
            raise bus_error(f"the logs at {self._bus.bootstrap_servers} cannot be read", error) from error
        records = [record for batch in batches.values() for record in batch]
        self._refresh_ends(idle=not records)
        return records

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close(autocommit=False, timeout_ms=2000)
            self._consumer = None

    def _wanted(self, partition: Any, first: int, end: int) -> int:
        if self._start == "earliest":
            return first
        if self._start == "end":
            return end
        assert not isinstance(self._start, str)
        return self._start.get(tuple(partition), first)

    def _seek(self, partition: Any, wanted: int, first: int, end: int) -> None:
        if first <= wanted <= end:
            self._consumer.seek(partition, wanted)
            return
        self._consumer.seek(partition, first)
        self.losses.append(OffsetLostError(partition.topic, partition.partition, wanted, first, end))

    def _relocate(self, places: dict[Any, int]) -> None:
        from kafka.errors import KafkaError

        try:
            first = self._consumer.beginning_offsets(list(places), timeout_ms=_CALL_MS)
            end = self._consumer.end_offsets(list(places), timeout_ms=_CALL_MS)
        except (KafkaError, OSError) as error:
            raise bus_error("the bounds of a log cannot be read", error) from error
        for place, wanted in places.items():
            self._seek(place, wanted, first[place], end[place])
            self.ends[tuple(place)] = end[place]

    def _apply_pauses(self) -> None:
        wanted = set(self.paused)
        if wanted == self._fetch_paused:
            return
        for partition in self._consumer.assignment():
            if partition.topic in wanted:
                self._consumer.pause(partition)
            else:
                self._consumer.resume(partition)
        self._fetch_paused = wanted

    def _refresh_ends(self, idle: bool) -> None:
        """Ask for the ends of the logs: often while idle (is it the end?), now and then while busy (lag)."""
        from kafka.errors import KafkaError

        now = time.monotonic()
        if now - self._ends_at < (_ENDS_IDLE_S if idle else _ENDS_EVERY_S):
            return
        self._ends_at = now
        self.settled = {}
        assigned = self._consumer.assignment()
        try:
            ends = self._consumer.end_offsets(list(assigned), timeout_ms=1000)
        except (KafkaError, OSError):
            return  # the broker is away: `answered` shows for how long
        self.answered = time.monotonic()
        self.ends = {tuple(partition): offset for partition, offset in ends.items()}
        if idle:
            self.settled = {
                tuple(partition): self._consumer.position(partition)
                for partition in assigned
                if partition.topic not in self._fetch_paused
            }
