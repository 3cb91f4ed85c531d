"""How much waits in memory, per topic, seen from two threads.

Invariant: every counter has one writer; the difference may be a moment old, and is never corrupted.
"""

from __future__ import annotations

from collections.abc import Iterable

from shared.bus.pausing import Load


class BufferMeter:
    """Counts what the poll thread hands over and what the asyncio loop takes up."""

    def __init__(self, topics: Iterable[str]) -> None:
        names = tuple(topics)
        self._in = {topic: [0, 0] for topic in names}
        self._out = {topic: [0, 0] for topic in names}

    def handed(self, topic: str, records: int, size: int) -> None:
        """By the poll thread."""
        counts = self._in[topic]
        counts[0] += records
        counts[1] += size

    def taken(self, topic: str, size: int) -> None:
        """By the asyncio loop: one record is being handled, or was dropped."""
        counts = self._out[topic]
        counts[0] += 1
        counts[1] += size

    def load(self, topic: str) -> Load:
        come, gone = self._in[topic], self._out[topic]
        return Load(come[0] - gone[0], come[1] - gone[1])

    def loads(self) -> dict[str, Load]:
        return {topic: self.load(topic) for topic in self._in}

    def records(self) -> int:
        return sum(self.load(topic).records for topic in self._in)
