"""Whether the reward of a domain can be told from the length of an attempt.

Invariant: six running numbers a domain, whatever passes through; the correlation is Pearson's, of weights that halve
with age (West's incremental update of weighted moments, 1979). Pure.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

LEAST = 64
HIGH = 0.9
"""Some correlation is honest: an attempt that is cut off at its limit is long and fails. At 0.9 four fifths of the
reward's variance are explained by length, and the answer hardly matters any more."""
_MEMORY = 256.0
"""Attempts whose weights sum up to the memory: older ones fade by 1 - 1/256 each."""


@dataclass(slots=True)
class _Moments:
    count: int = 0
    weight: float = 0.0
    mean_length: float = 0.0
    mean_reward: float = 0.0
    spread_length: float = 0.0
    spread_reward: float = 0.0
    spread_both: float = 0.0

    def add(self, length: float, reward: float) -> None:
        fade = 1.0 - 1.0 / _MEMORY
        self.count += 1
        self.weight = fade * self.weight + 1.0
        step = 1.0 / self.weight
        off_length, off_reward = length - self.mean_length, reward - self.mean_reward
        self.mean_length += step * off_length
        self.mean_reward += step * off_reward
        self.spread_length = fade * self.spread_length + off_length * (length - self.mean_length)
        self.spread_reward = fade * self.spread_reward + off_reward * (reward - self.mean_reward)
        self.spread_both = fade * self.spread_both + off_length * (reward - self.mean_reward)

    def correlation(self) -> float:
        """In [-1, 1]; 0 where either does not vary."""
        product = self.spread_length * self.spread_reward
        if product <= 1e-12:
            return 0.0
        return max(-1.0, min(1.0, self.spread_both / math.sqrt(product)))


class LengthAgainstReward:
    """By domain."""

    def __init__(self) -> None:
        self._domains: dict[str, _Moments] = {}

    def observe(self, domain: str, length: int, reward: float) -> bool:
        """`length` in sampled tokens. True once 64 attempts were seen and the correlation is 0.9 or beyond."""
        moments = self._domains.setdefault(domain, _Moments())
        moments.add(float(length), reward)
        return moments.count >= LEAST and abs(moments.correlation()) >= HIGH

    def correlation(self, domain: str) -> float:
        moments = self._domains.get(domain)
        return 0.0 if moments is None else moments.correlation()

    def lift(self, domain: str) -> None:
        self._domains.pop(domain, None)
