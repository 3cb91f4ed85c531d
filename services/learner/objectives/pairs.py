"""The loss of some preference pairs under an objective: the one place where their pieces meet.

Invariant: tokens are flat (padding, packing and order are gone) and a batch's loss is Σ weight·pair with weights from
the whole batch, so cutting a batch between pairs changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from services.learner.objectives.objective import Objective
from services.learner.objectives.preference import sigmoid_loss, squared_loss


@dataclass(frozen=True, slots=True)
class Pairs:
    """Answers as flat tokens, n in all, in `count` sequences, and which two make a pair.

    new float[n] with gradient; reference float[n] constants (None where the objective has none); rows int64[n] in
    [0, count); chosen, rejected int64[pairs] are sequences; weight float[pairs]: 1/(pairs of the whole batch).
    """

    new: Tensor
    reference: Tensor | None
    rows: Tensor
    count: int
    chosen: Tensor
    rejected: Tensor
    weight: Tensor


@dataclass(frozen=True, slots=True)
class PairTerms:
    """The share of the batch's loss (scalar with gradient), and per pair [pairs]: h and whether it is above 0."""

    loss: Tensor
    differences: Tensor
    correct: Tensor


def preference_loss(pairs: Pairs, objective: Objective) -> PairTerms:
    """Σ weight·loss of the pairs. Raises `ValueError` where the objective needs a reference and there is none."""
    if objective.kind != "preference":
        raise ValueError(f"an objective of kind {objective.kind!r} has no pairs")
    if (pairs.reference is None) is not objective.reference_free:
        raise ValueError(
            "log-probabilities of a reference are "
            + ("given to an objective without one" if objective.reference_free else "missing")
        )
    ratio = pairs.new if pairs.reference is None else pairs.new - pairs.reference
    scores = _scores(ratio, pairs, objective.length_normalised)
    h = scores[pairs.chosen] - scores[pairs.rejected]
    if objective.preference == "squared":
        losses = squared_loss(h, objective.beta)
    else:
        losses = sigmoid_loss(h, objective.beta, objective.margin, objective.label_smoothing)
    return PairTerms((pairs.weight * losses).sum(), h.detach(), h.detach() > 0)


def _scores(ratio: Tensor, pairs: Pairs, length_normalised: bool) -> Tensor:
    sums = ratio.new_zeros(pairs.count).index_add(0, pairs.rows, ratio)
    if not length_normalised:
        return sums
    sizes = ratio.new_zeros(pairs.count).index_add(0, pairs.rows, torch.ones_like(ratio))
    return sums / sizes.clamp(min=1)
