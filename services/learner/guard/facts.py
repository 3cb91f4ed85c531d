"""What the guard is told of a step, before its update is applied.

Invariant: a metric that was not measured is absent. (A batch without gradient has no entropy; a zero in its place
would look like a collapse.)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

MEANS: frozenset[str] = frozenset({"kl", "entropy", "logprob_gap_mean", "clip_fraction"})
"""Metrics that are means over tokens, so that a trajectory's part in them is exact."""


@dataclass(frozen=True, slots=True)
class Contribution:
    """One trajectory's own numbers.

    `values` by metric: its own mean for a mean over tokens, its own maximum for a maximum, the norm of its own
    gradient (over its log-probabilities) for `gradient_norm`, its share of Σw² for `effective_sample_size`.
    """

    trajectory_id: str
    domain: str = ""
    tokens: int = 1
    reward: float | None = None
    values: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StepFacts:
    """`rewards` are mean rewards by domain, over every attempt of the batch that has one."""

    step: int
    metrics: Mapping[str, float]
    rewards: Mapping[str, float] = field(default_factory=dict)
    contributions: tuple[Contribution, ...] = ()
