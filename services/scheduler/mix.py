"""Domain mix by weight.

Invariant: after any number of picks each domain's count is within one of its share of the weights, in an
order that depends on nothing but the weights (Bresenham's rule; a stride scheduler without a clock).
"""

from __future__ import annotations

from collections.abc import Mapping


class DomainMix:
    """Picks domains one after another; `counts` is how often each was picked."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        if not weights:
            raise ValueError("a domain mix needs at least one domain")
        total = sum(weights.values())
        self._shares = {name: weight / total for name, weight in weights.items()}
        self.counts = dict.fromkeys(weights, 0)

    def pick(self) -> tuple[str, int]:
        """The next domain and how many of it came before."""
        n = sum(self.counts.values()) + 1
        name = max(self._shares, key=lambda d: (self._shares[d] * n - self.counts[d], d))
        self.counts[name] += 1
        return name, self.counts[name] - 1
