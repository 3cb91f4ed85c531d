"""Learning from pairs: a chosen answer and a rejected one to the same prompt.

Invariant: the loss is per pair, and depends on the pair's h alone: (new − reference) of the chosen answer minus that
of the rejected one, sums over tokens, or means where lengths are normalised. Nothing is averaged here.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import logsigmoid


def dpo_loss(
    chosen: Tensor, rejected: Tensor, reference_chosen: Tensor, reference_rejected: Tensor, beta: float
) -> Tensor:
    """[pairs]: −log σ(β·[(new − ref)_chosen − (new − ref)_rejected]), arXiv 2305.18290."""
    return sigmoid_loss((chosen - reference_chosen) - (rejected - reference_rejected), beta)


def sigmoid_loss(h: Tensor, beta: float, margin: float = 0.0, smoothing: float = 0.0) -> Tensor:
    """[pairs]: −(1 − s)·log σ(βh − margin) − s·log σ(margin − βh).

    DPO (arXiv 2305.18290) with neither; SimPO (2405.14734) with a margin γ, no reference and mean log-probabilities;
    `smoothing` s is the chance that a label is wrong (E. Mitchell, "A note on DPO with noisy preferences", 2023).
    """
    z = beta * h - margin
    loss = -logsigmoid(z)
    return loss if smoothing == 0 else (1 - smoothing) * loss - smoothing * logsigmoid(-z)


def squared_loss(h: Tensor, beta: float) -> Tensor:
    """[pairs]: (h − 1/(2β))²: IPO (arXiv 2310.12036, eq. 17), which does not run off where the labels are certain."""
    return (h - 1 / (2 * beta)).square()
