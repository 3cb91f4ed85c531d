"""Importance ratios between the policy that is trained and the one that the objective calls old.

Invariant: a sequence ratio has the gradient of the sequence's mean log-ratio spread over its tokens, and every
token of a sequence has the same value (GSPO, arXiv 2507.18071).

Shapes: `new`, `old` are [n] log-probabilities of sampled tokens; `rows` int64 [n] says which of `count`
sequences each token belongs to.
"""

from __future__ import annotations

import torch
from torch import Tensor

from services.learner.objectives.kinds import RatioKind


def row_means(values: Tensor, rows: Tensor, count: int) -> Tensor:
    """[count]: mean over the tokens of each row; 0 for a row without tokens."""
    sums = values.new_zeros(count).index_add(0, rows, values)
    sizes = values.new_zeros(count).index_add(0, rows, torch.ones_like(values))
    return sums / sizes.clamp(min=1)


def importance_ratio(new: Tensor, old: Tensor, kind: RatioKind, rows: Tensor, count: int) -> Tensor:
    """[n]: exp(new − old) per token, or exp of its mean over the sequence for `sequence`."""
    if kind == "token":
        return torch.exp(new - old)
    mean = row_means((new - old).detach(), rows, count)[rows]
    return torch.exp(new - new.detach() + mean)
