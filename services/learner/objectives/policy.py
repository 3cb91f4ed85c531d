"""The loss of a micro-batch under an objective: the one place where the pieces meet.

Invariant: `Tokens` is flat: padding, packing and order are gone before a number is made. The returned loss is
this micro-batch's share of the batch's loss.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from services.learner.objectives.clipping import clipped, likelihood, probability_gap, weighted_likelihood
from services.learner.objectives.correction import correction_weights
from services.learner.objectives.kl import kl_estimate
from services.learner.objectives.presets import Objective
from services.learner.objectives.ratios import importance_ratio
from services.learner.objectives.sft import imitation_loss


@dataclass(frozen=True, slots=True)
class Tokens:
    """Sampled tokens of some sequences, n in all.

    new float[n] with gradient; sampler, old, reference, advantage, weight float[n] constants; rows int64[n] in
    [0, count). `kl_mask` is 1 where a KL term may act. `weight` is the aggregation's.
    """

    new: Tensor
    sampler: Tensor
    old: Tensor
    advantage: Tensor
    weight: Tensor
    rows: Tensor
    count: int
    reference: Tensor | None = None
    kl_mask: Tensor | None = None


@dataclass(frozen=True, slots=True)
class LossTerms:
    """Shares of the batch's loss (scalars with gradient), and per-token facts [n] for the metrics."""

    policy: Tensor
    kl: Tensor
    clipped: Tensor
    correction: Tensor
    kl_tokens: Tensor

    def total(self, kl_coefficient: float) -> Tensor:
        return self.policy + kl_coefficient * self.kl if kl_coefficient else self.policy


def surrogate_loss(tokens: Tokens, objective: Objective) -> tuple[Tensor, Tensor]:
    """([n] loss per token before correction, [n] bool: the trust region cut it)."""
    low, high = objective.clip_low, objective.clip_high
    if objective.kind == "imitation":
        return imitation_loss(tokens.new), torch.zeros_like(tokens.new, dtype=torch.bool)
    if objective.surrogate == "likelihood":
        return likelihood(tokens.new, tokens.advantage)
    if objective.surrogate == "probability_gap":
        return probability_gap(
            tokens.new, tokens.old, tokens.advantage, low=low, high=high, penalty=objective.gap_penalty
        )
    ratio = importance_ratio(tokens.new, tokens.old, objective.ratio, tokens.rows, tokens.count)
    if objective.surrogate == "weighted_likelihood":
        return weighted_likelihood(tokens.new, ratio, tokens.advantage, low=low, high=high)
    return clipped(ratio, tokens.advantage, low=low, high=high)


def policy_loss(tokens: Tokens, objective: Objective) -> LossTerms:
    """The terms of the loss; both policy and KL are Σ weight·term."""
    losses, cut = surrogate_loss(tokens, objective)
    if objective.kind == "imitation":
        correction = torch.ones_like(losses)
    else:
        correction = correction_weights(
            tokens.old,
            tokens.sampler,
            tokens.rows,
            tokens.count,
            kind=objective.correction,
            low=objective.correction_low,
            high=objective.correction_high,
        )
    other = tokens.sampler if tokens.reference is None else tokens.reference
    if tokens.reference is None:
        with torch.no_grad():
            kl_tokens = kl_estimate(tokens.new, other, "k3")
        kl = losses.new_zeros(())
    else:
        kl_tokens = kl_estimate(tokens.new, other, objective.kl_estimator)
        acts = kl_tokens if tokens.kl_mask is None else kl_tokens * tokens.kl_mask
        kl = (tokens.weight * acts).sum()
    return LossTerms(
        policy=(tokens.weight * correction * losses).sum(),
        kl=kl,
        clipped=cut.detach(),
        correction=correction,
        kl_tokens=kl_tokens.detach(),
    )
