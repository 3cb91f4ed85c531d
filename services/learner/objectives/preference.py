"""Direct preference optimisation (arXiv 2305.18290).

Invariant: log-probabilities come in as sums over the tokens of an answer; the loss is per pair.
"""

from __future__ import annotations

import torch
from torch import Tensor


def dpo_loss(
    chosen: Tensor, rejected: Tensor, reference_chosen: Tensor, reference_rejected: Tensor, beta: float
) -> Tensor:
    """[pairs]: −log σ(β·[(new − ref)_chosen − (new − ref)_rejected])."""
    margin = (chosen - reference_chosen) - (rejected - reference_rejected)
    return -torch.nn.functional.logsigmoid(beta * margin)
