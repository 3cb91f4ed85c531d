"""A declared bound, and whether a value is out of it.

Invariant: a value that is not finite is out of every bound on it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from services.learner.guard.decision import Action
from shared.settings import GuardBound, GuardMetric, GuardSettings

Side = Literal["above", "below", "either"]
_BELOW: frozenset[str] = frozenset({"entropy", "effective_sample_size"})
"""Collapses show as low values here, as high ones everywhere else."""


@dataclass(frozen=True, slots=True)
class Bound:
    """`either` is for jumps: their size counts, whatever their direction."""

    metric: GuardMetric
    limit: float
    side: Side
    action: Action
    patience: int

    @property
    def key(self) -> str:
        """What a streak is remembered under: a bound that is changed begins anew."""
        return f"{self.metric} {self.side} {self.limit:g} {self.action}"

    def crossed(self, value: float) -> bool:
        if not math.isfinite(value):
            return True
        if self.side == "either":
            return abs(value) > self.limit
        if self.metric == "reward_jump":
            return value > self.limit if self.side == "above" else value < -self.limit
        return value > self.limit if self.side == "above" else value < self.limit


def bounds_of(settings: GuardSettings) -> tuple[Bound, ...]:
    """Sorted, so that the order of the file decides nothing."""
    return tuple(sorted(map(_bound, settings.bounds), key=lambda bound: bound.key))


def _bound(declared: GuardBound) -> Bound:
    side: Side
    if declared.side != "natural":
        side = declared.side
    elif declared.metric == "reward_jump":
        side = "either"
    else:
        side = "below" if declared.metric in _BELOW else "above"
    return Bound(declared.metric, declared.limit, side, declared.action, declared.patience)
