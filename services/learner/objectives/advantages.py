"""Advantages from rewards: what an attempt is compared with, and by what it is divided.

Invariant: computed in float64; rewards that are all equal give advantages of exactly zero, and a group of one has
none. (In float32 eight equal rewards leave a residue that a division by their tiny deviation turns into 0.03 each.)

Two parts compose: a baseline within the group (`group_advantages`), then, if the objective asks for it, one
normalisation over the whole batch (`whiten`), whose statistics count attempts or tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from services.learner.objectives.kinds import AdvantageKind

Float64 = NDArray[np.float64]


def has_signal(rewards: Sequence[float], kind: AdvantageKind = "group_zscore") -> bool:
    """Whether a group teaches anything: at least two rewards that are not all equal.

    With `raw` an attempt is not compared with its group, so any attempt does.
    """
    if kind == "raw":
        return len(rewards) > 0
    return len(rewards) >= 2 and any(reward != rewards[0] for reward in rewards)


def group_advantages(rewards: Sequence[float], kind: AdvantageKind, epsilon: float = 1e-6) -> Float64:
    """float64[n] of one group.

    group_zscore: (R − mean) / (sample deviation + epsilon), GRPO (arXiv 2402.03300).
    group_centered: R − mean, Dr. GRPO (2503.20783).
    leave_one_out: n/(n−1) · (R − mean), which is R minus the mean of the others, RLOO (2402.14740).
    raw: R, for a baseline that comes from the whole batch: REINFORCE++ (2501.03262).
    """
    values = np.asarray(rewards, dtype=np.float64)
    if kind == "raw":
        return values
    if not has_signal(rewards):
        return np.zeros(len(rewards), dtype=np.float64)
    centered: Float64 = values - values.mean()
    if kind == "group_centered":
        return centered
    if kind == "leave_one_out":
        return centered * (values.size / (values.size - 1))
    return centered / (float(values.std(ddof=1)) + epsilon)


def whiten(values: ArrayLike, mass: ArrayLike, epsilon: float = 1e-6, silent_mass: float = 0.0) -> Float64:
    """float64[n]: (values − mean) / (deviation + epsilon) over the whole batch: REINFORCE++ (arXiv 2501.03262).

    `mass` [n] is how much each value counts in mean and deviation (population form, as the authors' code): 1 an
    attempt or its number of tokens. `silent_mass` is that of what has the value 0 and is not in the array (groups
    without signal are not computed, but belong to the batch). All equal gives exact zeros.
    """
    x, w = np.asarray(values, dtype=np.float64), np.asarray(mass, dtype=np.float64)
    total = float(w.sum()) + silent_mass
    if x.size == 0 or total <= 0 or bool((x == (0.0 if silent_mass > 0 else x[0])).all()):
        return np.zeros_like(x)
    mean = float((w * x).sum()) / total
    variance = (float((w * (x - mean) ** 2).sum()) + silent_mass * mean**2) / total
    out: Float64 = (x - mean) / (float(np.sqrt(variance)) + epsilon)
    return out
