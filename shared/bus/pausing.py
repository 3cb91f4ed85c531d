"""Which topics must not be fetched just now.

Invariant: a topic whose buffer is at its limit is paused, and stays so until half of it is gone; the decision is made
afresh from the buffers each time, so a partition that was gained later is covered like any other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple


class Load(NamedTuple):
    """What waits in memory for one topic."""

    records: int
    bytes: int


@dataclass(frozen=True, slots=True)
class BufferLimits:
    """Of one topic. One fetch may pass them by what it brings."""

    records: int
    bytes: int

    def is_full(self, load: Load) -> bool:
        return load.records >= self.records or load.bytes >= self.bytes

    def is_low(self, load: Load) -> bool:
        """Whether fetching should go on: half of both limits is free."""
        return load.records <= self.records // 2 and load.bytes <= self.bytes // 2


def topics_to_pause(loads: Mapping[str, Load], paused: Iterable[str], limits: BufferLimits) -> frozenset[str]:
    """`paused`: the topics that are paused now, for hysteresis."""
    before = set(paused)
    return frozenset(
        topic
        for topic, load in loads.items()
        if limits.is_full(load) or (topic in before and not limits.is_low(load))
    )
