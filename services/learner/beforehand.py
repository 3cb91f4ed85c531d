"""What a step must know of its whole batch before the first backward pass.

Invariant: a KL that is part of the reward is measured over the whole batch first, so the advantages do not depend on
how the batch is cut; the reference's log-probabilities are computed once and kept for the loss.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from services.learner.batching import Batch, MicroBatch, silent_mass
from services.learner.model import PolicyModel
from services.learner.objectives.kl import kl_estimate
from services.learner.objectives.objective import Objective
from services.learner.objectives.penalty import penalised_advantages


@dataclass(frozen=True, slots=True)
class Known:
    """Of one micro-batch, both [n]; None where they are computed on the way."""

    reference: Tensor | None = None
    advantages: Tensor | None = None


def rewards_pay_kl(objective: Objective, kl_coefficient: float) -> bool:
    return objective.kl_place == "reward" and kl_coefficient > 0


def know(
    micros: Iterable[MicroBatch],
    batch: Batch,
    objective: Objective,
    kl_coefficient: float,
    *,
    policy: PolicyModel,
    reference: PolicyModel,
) -> list[Known]:
    """The advantages of every token where rewards pay for the KL between the old policy and the reference."""
    references, penalties, attempts, order = [], [], [], []
    for micro in micros:
        with torch.no_grad():
            measured = reference.logprobs(micro)
            recomputed = objective.old_logprobs == "recompute"
            old = policy.logprobs(micro) if recomputed else micro.sampler
            estimate = kl_estimate(old.double(), measured.double(), objective.kl_estimator)
        references.append(measured)
        penalties.append((kl_coefficient * estimate).cpu().numpy())
        attempts.append(micro.attempts.cpu().numpy())
        order.append(micro.order.cpu().numpy())
    if not references:
        return []
    advantages = penalised_advantages(
        np.concatenate(penalties),
        np.concatenate(attempts),
        np.concatenate(order),
        rewards=[attempt.reward for attempt in batch.attempts],
        groups=[attempt.group for attempt in batch.attempts],
        kind=objective.advantage,
        epsilon=objective.advantage_epsilon,
        batch_norm=objective.batch_norm,
        silent_mass=silent_mass(batch.attempts, batch.denominators, objective),
    )
    # A batch in which nothing tells attempts apart is not trained for its KL alone, unless that is asked for.
    advantages *= np.array([attempt.kl for attempt in batch.attempts])[np.concatenate(attempts)]
    parts = np.split(advantages, np.cumsum([part.size for part in penalties])[:-1])
    return [Known(*pair) for pair in zip(references, map(torch.from_numpy, parts), strict=True)]
