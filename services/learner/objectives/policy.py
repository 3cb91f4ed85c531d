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
    [0, count). `kl_mask` is 1 where a KL or entropy term may act. `weight` is the aggregation's. `entropy` float[n]
    of the distribution at each token, with gradient where the objective has an entropy term.
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
    entropy: Tensor | None = None


@dataclass(frozen=True, slots=True)
class LossTerms:
    """Shares of the batch's loss (scalars with gradient), and per-token facts [n] for the metrics."""

    policy: Tensor
    kl: Tensor
    clipped: Tensor
    correction: Tensor
    kl_tokens: Tensor
    entropy: Tensor
    """Σ weight·entropy; it is subtracted. 0 where the objective has no entropy term."""

    def total(self, kl_coefficient: float, entropy_coefficient: float = 0.0) -> Tensor:
        loss = self.policy + kl_coefficient * self.kl if kl_coefficient else self.policy
        return loss - entropy_coefficient * self.entropy if entropy_coefficient else loss


def surrogate_loss(tokens: Tokens, objective: Objective) -> tuple[Tensor, Tensor]:
    """([n] loss per token before correction, [n] bool: the trust region cut it)."""
    low, high = objective.clip_low, objective.clip_high
    if objective.kind == "imitation":
        return imitation_loss(tokens.new), torch.zeros_like(tokens.new, dtype=torch.bool)
    if objective.kind == "preference":
        raise ValueError("a preference objective has pairs, not tokens with advantages: see preference_loss")
    if objective.surrogate == "likelihood":
        return likelihood(tokens.new, tokens.advantage)
    if objective.surrogate == "probability_gap":
        return probability_gap(
            tokens.new, tokens.old, tokens.advantage, low=low, high=high, penalty=objective.gap_penalty
        )
    ratio = importance_ratio(tokens.new, tokens.old, objective.ratio, tokens.rows, tokens.count)
    if objective.surrogate == "weighted_likelihood":
        return weighted_likelihood(tokens.new, ratio, tokens.advantage, low=low, high=high)
    return clipped(ratio, tokens.advantage, low=low, high=high, dual=objective.clip_dual)


def policy_loss(tokens: Tokens, objective: Objective) -> LossTerms:
    """The terms of the loss; policy, KL and entropy are each Σ weight·term.

    A KL that is part of the reward is in the advantages already: it is measured here and has no term.
    """
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
    kl, kl_tokens = _kl_term(tokens, objective)
    return LossTerms(
        policy=(tokens.weight * correction * losses).sum(),
        kl=kl,
        clipped=cut.detach(),
        correction=correction,
        kl_tokens=kl_tokens.detach(),
        entropy=_entropy_term(tokens, objective),
    )


def _acting(tokens: Tokens, values: Tensor) -> Tensor:
    acts = values if tokens.kl_mask is None else values * tokens.kl_mask
    return (tokens.weight * acts).sum()


def _kl_term(tokens: Tokens, objective: Objective) -> tuple[Tensor, Tensor]:
    """(term, [n] per token). Without a reference only the drift from the sampler is measured."""
    if tokens.reference is None:
        with torch.no_grad():
            return tokens.new.new_zeros(()), kl_estimate(tokens.new, tokens.sampler, "k3")
    if objective.kl_place == "reward":
        with torch.no_grad():
            return tokens.new.new_zeros(()), kl_estimate(tokens.new, tokens.reference, objective.kl_estimator)
    kl_tokens = kl_estimate(tokens.new, tokens.reference, objective.kl_estimator)
    return _acting(tokens, kl_tokens), kl_tokens


def _entropy_term(tokens: Tokens, objective: Objective) -> Tensor:
    if objective.entropy_coefficient == 0 or tokens.entropy is None:
        return tokens.new.new_zeros(())
    return _acting(tokens, tokens.entropy.to(tokens.new.dtype))
