"""Domain mix by weight.

Invariant: while no domain is held back, after any number of picks each domain's count is within one of its share of
the weights, in an order that depends on nothing but the weights (Bresenham's rule; a stride scheduler without a
clock). What a domain misses while it is held back goes to the others by weight and is never caught up.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping


class DomainMix:
    """Picks domains one after another; `counts` is how often each was picked."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        if not weights:
            raise ValueError("a domain mix needs at least one domain")
        total = sum(weights.values())
        self._shares = {name: weight / total for name, weight in weights.items()}
        self._moved = dict.fromkeys(weights, 0.0)
        """Picks that holds gave to a domain (or took from it), beside its share."""
        self.counts = dict.fromkeys(weights, 0)

    def __contains__(self, domain: str) -> bool:
        return domain in self._shares

    def can_pick(self, held: Collection[str] = ()) -> bool:
        return any(name not in held for name in self._shares)

    def pick(self, held: Collection[str] = ()) -> tuple[str, int]:
        """The next domain that is not held back, and how many of it came before."""
        allowed = [name for name in self._shares if name not in held]
        if not allowed:
            raise ValueError(f"every domain of the mix is held back: {', '.join(self._shares)}")
        if len(allowed) < len(self._shares):
            free = sum(self._shares[name] for name in allowed)
            for name, share in self._shares.items():
                self._moved[name] += share / free - share if name in allowed else -share
        n = sum(self.counts.values()) + 1
        name = max(allowed, key=lambda d: (self._shares[d] * n + self._moved[d] - self.counts[d], d))
        self.counts[name] += 1
        return name, self.counts[name] - 1

    def correct(self, picked: str, was: str) -> None:
        """One pick was `was`, not `picked`: a domain was held back when it was made. Nobody owes anything for it."""
        for name, by in ((picked, -1), (was, 1)):
            self.counts[name] += by
            self._moved[name] += by
