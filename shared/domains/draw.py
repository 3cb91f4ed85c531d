"""Random draws that come out the same on every machine and every Python.

Invariant: the stream is a function of the key alone. Only `random.Random.random()` is used, the one method
whose sequence the Python documentation promises to keep; everything else is derived from it here.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")
_LARGEST_SPAN = 1 << 48
"""`random()` holds 53 bits: below this the odds of two values differ by at most 1 part in 32."""


class Draw:
    """A stream of draws, keyed by text."""

    def __init__(self, key: str) -> None:
        self._random = random.Random(int.from_bytes(hashlib.sha256(key.encode()).digest(), "big"))

    def integer(self, low: int, high: int) -> int:
        """An integer in [low, high], both ends included. Raises `ValueError` for an empty or huge range."""
        span = high - low + 1
        if not 0 < span <= _LARGEST_SPAN:
            raise ValueError(f"range {low}..{high} holds {span} integers: it must hold 1 to {_LARGEST_SPAN}")
        return low + int(self._random.random() * span)

    def chance(self, probability: float) -> bool:
        return self._random.random() < probability

    def choice(self, items: Sequence[T]) -> T:
        return items[self.integer(0, len(items) - 1)]

    def shuffled(self, items: Sequence[T]) -> list[T]:
        out = list(items)
        for last in range(len(out) - 1, 0, -1):
            other = self.integer(0, last)
            out[last], out[other] = out[other], out[last]
        return out

    def sample(self, items: Sequence[T], count: int) -> list[T]:
        """`count` of the items, each at most once, in drawn order."""
        if count > len(items):
            raise ValueError(f"{count} of {len(items)} items wanted: there are not so many")
        return self.shuffled(items)[:count]
