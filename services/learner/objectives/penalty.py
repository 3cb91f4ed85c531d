"""KL to the reference as part of the reward: the advantage of every token pays for what follows it.

Invariant: the penalty is a constant of the batch (no gradient flows through it) and is taken over the whole batch
before the first backward pass, so cutting the batch changes nothing. A coefficient of zero gives the advantages
that there are without a penalty.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from services.learner.objectives.advantages import (
    Float64,
    group_advantages,
    whiten,
)
from services.learner.objectives.kinds import AdvantageKind, BatchNormKind

Int64 = NDArray[np.int64]


def returns_to_go(penalty: Float64, attempts: Int64, order: Int64, rewards: Float64) -> Float64:
    """float64[n]: the attempt's reward minus the penalties from this token to the attempt's last one.

    `order` int64[n] puts the sequences of one attempt in order; within a sequence tokens come in order.
    (REINFORCE++, arXiv 2501.03262, eq. for A with a discount of 1; the reward is paid at the last token.)
    """
    by_time = np.lexsort((np.arange(penalty.size), order, attempts))
    ordered, owners = penalty[by_time], attempts[by_time]
    upto = np.cumsum(ordered)
    last = np.searchsorted(owners, owners, side="right") - 1
    rest = upto[last] - upto + ordered
    out: Float64 = np.empty_like(ordered)
    out[by_time] = rewards[owners] - rest
    return out


def penalised_advantages(
    penalty: Float64,
    attempts: Int64,
    order: Int64,
    *,
    rewards: Sequence[float],
    groups: Sequence[int],
    kind: AdvantageKind,
    epsilon: float,
    batch_norm: BatchNormKind = "none",
    silent_mass: float = 0.0,
) -> Float64:
    """float64[n], one a token, from `penalty` float64[n] (coefficient · KL estimate) of every token of the batch.

    `attempts` int64[n] indexes `rewards` and `groups` [a]. A group baseline compares whole attempts: R − Σ penalty
    (as RLOO, arXiv 2402.14740, does). Without one (`raw`) each token has its own return to go.
    """
    reward = np.asarray(rewards, dtype=np.float64)
    if kind == "raw":
        values = returns_to_go(penalty, attempts, order, reward)
    else:
        paid = reward - np.bincount(attempts, weights=penalty, minlength=reward.size)
        of_group = np.asarray(groups)
        advantage = np.zeros_like(paid)
        for group in np.unique(of_group):
            here = of_group == group
            advantage[here] = group_advantages(paid[here].tolist(), kind, epsilon)
        values = advantage[attempts]
    if batch_norm == "none":
        return values
    sizes = np.bincount(attempts, minlength=reward.size).astype(np.float64)
    mass = np.ones_like(values) if batch_norm == "tokens" else 1.0 / sizes[attempts]
    return whiten(values, mass, epsilon, silent_mass)
