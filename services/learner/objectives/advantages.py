"""Advantages of a group from its rewards.

Invariant: computed in float64; a group whose rewards are equal has advantages of exactly zero, and a group of
one has none. (In float32 eight equal rewards leave a residue that a division by their tiny deviation turns into
0.03 each.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

AdvantageKind = Literal["group_zscore", "group_centered", "leave_one_out"]
Float64 = NDArray[np.float64]


def has_signal(rewards: Sequence[float]) -> bool:
    """Whether a group tells attempts apart: at least two rewards that are not all equal."""
    return len(rewards) >= 2 and any(reward != rewards[0] for reward in rewards)


def group_advantages(rewards: Sequence[float], kind: AdvantageKind, epsilon: float = 1e-6) -> Float64:
    """float64[n] of one group.

    group_zscore: (R − mean) / (sample deviation + epsilon), GRPO (arXiv 2402.03300).
    group_centered: R − mean, Dr. GRPO (2503.20783).
    leave_one_out: n/(n−1) · (R − mean), RLOO (2402.14740).
    """
    if not has_signal(rewards):
        return np.zeros(len(rewards), dtype=np.float64)
    values = np.asarray(rewards, dtype=np.float64)
    centered: Float64 = values - values.mean()
    if kind == "group_centered":
        return centered
    if kind == "leave_one_out":
        return centered * (values.size / (values.size - 1))
    return centered / (float(values.std(ddof=1)) + epsilon)
