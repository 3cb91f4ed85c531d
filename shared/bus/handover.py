"""From fetched records to work: what is new, what is due, and in whose turn.

Invariant: a record is handed over once per assignment, never before its delay has passed, and never when the notes of
the commit say that it is finished. Retries are served in the class of the topic that they came from.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from shared.bus.delivery import RawRecord
from shared.bus.meter import BufferMeter
from shared.bus.owned import Owned, Work
from shared.bus.records import RETRY_GROUP, header
from shared.bus.retry import due_ms


class Handover:
    """Used by the poll thread. Wall-clock time is compared with the broker's append times."""

    def __init__(
        self,
        group: str,
        topics: Collection[str],
        meter: BufferMeter,
        offer: Callable[[list[Work]], None],
    ) -> None:
        self._group = group
        self._topics = frozenset(topics)
        self._meter = meter
        self._offer = offer

    def take(self, batches: Mapping[Any, list[RawRecord]], owned_places: Mapping[Any, Owned]) -> None:
        """Records of one poll, by partition."""
        work: list[Work] = []
        for place, records in batches.items():
            owned = owned_places.get(place)
            if owned is None or not owned.placed:
                continue
            take = owned.tracker.take
            fresh = [record for record in records if take(record.offset)]
            if owned.delay_s:
                owned.held.extend(fresh)
                work.extend(self._due(owned))
            else:
                topic = place.topic
                work.extend([Work(record, owned, topic, record.size) for record in fresh])
        self._send(work)

    def release_due(self, partitions: Iterable[Owned]) -> None:
        """Held records whose time has come meanwhile."""
        work: list[Work] = []
        for owned in partitions:
            if owned.held:
                work.extend(self._due(owned))
        self._send(work)

    def next_due_s(self, partitions: Iterable[Owned], most_s: float) -> float:
        """Seconds until the next held record is due, `most_s` at most."""
        now_ms = time.time() * 1000
        waits = [
            max(0.001, (due_ms(owned.held[0].timestamp_ms, owned.delay_s) - now_ms) / 1000)
            for owned in partitions
            if owned.held
        ]
        return min([most_s, *waits])

    def _due(self, owned: Owned) -> list[Work]:
        """Records of other groups are due at once, since nothing will be done with them."""
        now_ms = round(time.time() * 1000)
        out = []
        while owned.held:
            record = owned.held[0]
            ours = header(record.headers, RETRY_GROUP) == self._group
            if ours and due_ms(record.timestamp_ms, owned.delay_s) > now_ms:
                break
            owned.held.popleft()
            origin = header(record.headers, "origin").partition("/")[0]
            lane = origin if origin in self._topics else record.topic
            out.append(Work(record, owned, lane, record.size))
        return out

    def _send(self, work: list[Work]) -> None:
        if not work:
            return
        loads: dict[str, list[int]] = {}
        for item in work:
            load = loads.setdefault(item.record.topic, [0, 0])
            load[0] += 1
            load[1] += item.size
        for topic, (records, size) in loads.items():
            self._meter.handed(topic, records, size)
        self._offer(work)
