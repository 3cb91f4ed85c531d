"""Correction for the gap between the policy that sampled and the one that the objective calls old.

Invariant: a weight is a constant (no gradient flows through it), and a rejected token leaves the numerator
only: the denominator is counted before rejection.
"""

from __future__ import annotations

import torch
from torch import Tensor

from services.learner.objectives.kinds import CorrectionKind
from services.learner.objectives.ratios import row_means


def correction_weights(
    old: Tensor, sampler: Tensor, rows: Tensor, count: int, *, kind: CorrectionKind, low: float, high: float
) -> Tensor:
    """[n] weights w = exp(old − sampler), bounded. `low` is read by the masked kinds only.

    truncated: min(w, high) (truncated importance sampling between the learner and an engine whose numbers differ,
    Yao et al. 2025). truncated_sequence: min(product over the sequence, high), the unbiased weight of a whole
    sequence before its truncation. masked: w where low ≤ w ≤ high, else 0 (decoupled PPO's cap, arXiv 2110.00641,
    2505.24298). masked_sequence: w where the geometric mean over the sequence is inside.
    """
    gap = (old - sampler).detach()
    if kind == "none":
        return torch.ones_like(gap)
    weight = torch.exp(gap)
    if kind == "truncated":
        return weight.clamp(max=high)
    if kind == "truncated_sequence":
        product = gap.new_zeros(count).index_add(0, rows, gap)
        return torch.exp(product).clamp(max=high)[rows]
    tested = weight if kind == "masked" else torch.exp(row_means(gap, rows, count))[rows]
    # Not a product: an overflowed weight times zero is not a number.
    return torch.where((tested >= low) & (tested <= high), weight, torch.zeros_like(weight))
