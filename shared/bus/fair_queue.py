"""Which class of work is next: deficit round robin with an aging floor.

Invariant: over any stretch in which several classes have work, each is served in proportion to its weight, to within
one round; and whatever has waited longer than `aging_s` is served within `floor_every` turns of its class being the
oldest, so that no weight starves a class. Order inside a class is first in, first out.

Source: Shreedhar and Varghese, "Efficient Fair Queueing using Deficit Round Robin" (SIGCOMM 1995), with records of
cost one.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Generic, TypeVar

T = TypeVar("T")


class FairQueue(Generic[T]):
    """Pure: the clock (seconds, any origin) is passed in."""

    def __init__(self, weights: Mapping[str, int], aging_s: float = 30.0, floor_every: int = 4) -> None:
        """`weights`: classes and their shares, at least 1 each; `floor_every`: every so many turns age decides."""
        self._weights = {name: max(1, weight) for name, weight in weights.items()}
        self._queues: dict[str, collections.deque[tuple[float, T]]] = {
            name: collections.deque() for name in self._weights
        }
        self._ring = collections.deque(self._weights)
        self._deficit = self._weights[self._ring[0]] if self._ring else 0
        self._aging_s = aging_s
        self._floor_every = max(1, floor_every)
        self._turn = 0
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def push(self, name: str, item: T, now: float) -> None:
        """Raises `KeyError` for a class that was not declared."""
        self._queues[name].append((now, item))
        self._size += 1

    def push_front(self, name: str, item: T, now: float) -> None:
        """Give an item back, before everything else of its class."""
        self._queues[name].appendleft((now, item))
        self._size += 1

    def pop(self, now: float, closed: Collection[str] = ()) -> T | None:
        """The next item of a class that is not `closed`; None when there is none."""
        if not self._size:
            return None
        waiting = [name for name, queue in self._queues.items() if queue and name not in closed]
        if not waiting:
            return None
        self._turn += 1
        name = self._aged(now, waiting) if self._turn % self._floor_every == 0 else None
        if name is None:
            name = self._next_in_ring(closed)
        self._size -= 1
        return self._queues[name].popleft()[1]

    def remove(self, unwanted: Callable[[T], bool]) -> list[T]:
        """Take out every item for which `unwanted` holds, in order."""
        out: list[T] = []
        for name, queue in self._queues.items():
            kept: collections.deque[tuple[float, T]] = collections.deque()
            for entry in queue:
                if unwanted(entry[1]):
                    out.append(entry[1])
                else:
                    kept.append(entry)
            self._queues[name] = kept
        self._size -= len(out)
        return out

    def _aged(self, now: float, waiting: Iterable[str]) -> str | None:
        """The class whose first item has waited longest, if longer than `aging_s`."""
        heads = [(self._queues[name][0][0], name) for name in waiting]
        since, name = min(heads)
        return name if now - since > self._aging_s else None

    def _next_in_ring(self, closed: Collection[str]) -> str:
        while True:
            name = self._ring[0]
            if self._queues[name] and self._deficit > 0 and name not in closed:
                self._deficit -= 1
                return name
            # An empty or closed class keeps no credit: its share goes to those that have work.
            self._ring.rotate(-1)
            self._deficit = self._weights[self._ring[0]]
