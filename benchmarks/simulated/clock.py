"""Virtual time: events happen in the order of their times, and of equal ones in the order in which they were asked for.

Invariant: time never goes back, and nothing takes any but what was asked for.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable


class VirtualClock:
    """`now` in seconds."""

    def __init__(self) -> None:
        self.now = 0.0
        self._count = 0
        self._events: list[tuple[float, int, Callable[[], None]]] = []

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (self.now + seconds, self._count, act))

    def run(self, until: Callable[[], bool]) -> None:
        """Raises `RuntimeError` where nothing is left to happen before `until` holds: the run stands still."""
        while not until():
            if not self._events:
                raise RuntimeError(f"the simulated run stands still at {self.now:.1f} s")
            self.now, _, act = heapq.heappop(self._events)
            act()
