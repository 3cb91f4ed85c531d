"""What a step must know of its whole batch before the first backward pass.

Invariant: a KL that is part of the reward is measured over the whole batch first, so the advantages do not depend on
how the batch is cut; the reference's log-probabilities are computed once and kept for the loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from services.learner.batching import Batch, silent_mass
from services.learner.collate import MicroBatch
from services.learner.model import PolicyModel, Reference
from services.learner.objectives.kl import kl_estimate
from services.learner.objectives.objective import Objective
from services.learner.objectives.penalty import penalised_advantages

Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Known:
    """Of one micro-batch, both [n]; None where they are computed on the way."""

    reference: Tensor | None = None
    advantages: Tensor | None = None


def rewards_pay_kl(objective: Objective, kl_coefficient: float) -> bool:
    return objective.kl_place == "reward" and kl_coefficient > 0


@dataclass(frozen=True, slots=True)
class Measured:
    """Of the tokens of a micro-batch or of a whole share, all [n]: the reference's log-probabilities, the penalty
    (coefficient · KL), and whose they are."""

    reference: Tensor
    penalty: Float64
    attempts: Int64
    order: Int64

    @staticmethod
    def joined(parts: Sequence[Measured]) -> Measured:
        """One after another; the reference is left out, as nobody else reads it."""
        none = np.zeros(0, dtype=np.int64)
        return Measured(
            reference=torch.zeros(0),
            penalty=np.concatenate([none.astype(np.float64), *(part.penalty for part in parts)]),
            attempts=np.concatenate([none, *(part.attempts for part in parts)]),
            order=np.concatenate([none, *(part.order for part in parts)]),
        )


def measure(
    micro: MicroBatch,
    objective: Objective,
    kl_coefficient: float,
    *,
    policy: PolicyModel,
    reference: Reference,
) -> Measured:
    """The KL between the old policy and the reference at every token of one micro-batch."""
    with torch.no_grad():
        measured = reference.logprobs(micro)
        recomputed = objective.old_logprobs == "recompute"
        old = policy.logprobs(micro) if recomputed else micro.sampler
        estimate = kl_estimate(old.double(), measured.double(), objective.kl_estimator)
    return Measured(
        measured,
        (kl_coefficient * estimate).cpu().numpy(),
        micro.attempts.cpu().numpy(),
        micro.order.cpu().numpy(),
    )


def know(
    own: Sequence[Measured], shares: Sequence[Measured], share: int, batch: Batch, objective: Objective
) -> list[Known]:
    """The advantages of every token where rewards pay for the KL. `own`: this rank's micro-batches, which are share
    number `share` of all `shares`."""
    every = Measured.joined(shares)
    advantages = penalised_advantages(
        every.penalty,
        every.attempts,
        every.order,
        rewards=[attempt.reward for attempt in batch.attempts],
        groups=[attempt.group for attempt in batch.attempts],
        kind=objective.advantage,
        epsilon=objective.advantage_epsilon,
        batch_norm=objective.batch_norm,
        silent_mass=silent_mass(batch.attempts, batch.denominators, objective),
    )
    # A batch in which nothing tells attempts apart is not trained for its KL alone, unless that is asked for.
    advantages *= np.array([attempt.kl for attempt in batch.attempts])[every.attempts]
    at = sum(other.penalty.size for other in shares[:share])
    known = []
    for part in own:
        mine = torch.from_numpy(advantages[at : at + part.penalty.size])
        known.append(Known(part.reference, mine))
        at += part.penalty.size
    return known
