"""Curves of one side over seeds, and two sides beside each other."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any

SHOWN = 10
"""Points of a curve that are printed: means of equal parts."""
FINAL_SHARE = 6
"""The last sixth of the steps is the end of a curve."""


@dataclass(frozen=True, slots=True)
class Curves:
    """`rewards[s][t]`: the mean reward of step t with seed s."""

    rewards: tuple[tuple[float, ...], ...]

    @property
    def areas(self) -> list[float]:
        return [mean(curve) for curve in self.rewards]

    @property
    def finals(self) -> list[float]:
        return [mean(curve[-max(1, len(curve) // FINAL_SHARE) :]) for curve in self.rewards]

    def points(self) -> list[float]:
        """The mean curve, `SHOWN` parts of it."""
        steps = [mean(column) for column in zip(*self.rewards, strict=True)]
        cuts = [round(part * len(steps) / SHOWN) for part in range(SHOWN + 1)]
        return [round(mean(steps[a:b]), 3) for a, b in itertools.pairwise(cuts) if b > a]


def spread(values: Sequence[float]) -> float:
    return stdev(values) if len(values) > 1 else 0.0


def said(values: Sequence[float]) -> dict[str, Any]:
    return {"mean": round(mean(values), 4), "spread": round(spread(values), 4)}


def against(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, Any]:
    """Ours less theirs, and the standard error of that difference over seeds."""
    noise = math.sqrt(spread(ours) ** 2 / len(ours) + spread(theirs) ** 2 / len(theirs))
    return {"difference": round(mean(ours) - mean(theirs), 4), "noise": round(noise, 4)}
