"""From numbers per token to numbers per trajectory.

Invariant: a trajectory's mean times its tokens, summed over trajectories, is the batch's mean times all its tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from services.learner.guard.facts import Contribution

Float64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose tokens they are."""

    trajectory_id: str
    domain: str
    reward: float | None


@dataclass(frozen=True, slots=True)
class TokenFacts:
    """float64[n] each, of the n tokens of a batch that had a gradient.

    gap: log p_learner − log p_sampler; clipped: 1 where the trust region cut; slope: ∂loss/∂log p.
    """

    kl: Float64
    entropy: Float64
    gap: Float64
    clipped: Float64
    slope: Float64


def contributions(
    owners: Sequence[Owner], attempts: NDArray[np.int64], tokens: TokenFacts
) -> tuple[Contribution, ...]:
    """One of each owner; `attempts` int64[n] says whose each token is. Owners without a token have no values."""
    count = len(owners)
    sizes = np.bincount(attempts, minlength=count)

    def sums(values: Float64) -> Float64:
        return np.bincount(attempts, weights=values, minlength=count).astype(np.float64)

    def means(values: Float64) -> Float64:
        out: Float64 = sums(values) / np.maximum(sizes, 1)
        return out

    largest = np.zeros(count)
    with np.errstate(invalid="ignore"):  # what is not a number stays what it is
        np.maximum.at(largest, attempts, np.abs(tokens.gap))
    # As in the step's metric: beyond e^30 a weight is as good as infinite.
    weights = np.exp(2 * np.clip(tokens.gap, -30.0, 30.0))
    total = float(weights.sum()) or 1.0
    columns: Mapping[str, Float64] = {
        "kl": means(tokens.kl),
        "entropy": means(tokens.entropy),
        "logprob_gap_mean": means(np.abs(tokens.gap)),
        "logprob_gap_max": largest,
        "clip_fraction": means(tokens.clipped),
        "gradient_norm": np.sqrt(sums(tokens.slope**2)),
        "effective_sample_size": sums(weights) / total,
    }
    return tuple(
        Contribution(
            trajectory_id=owner.trajectory_id,
            domain=owner.domain,
            tokens=int(sizes[index]),
            reward=owner.reward,
            values={name: float(column[index]) for name, column in columns.items()} if sizes[index] else {},
        )
        for index, owner in enumerate(owners)
    )
