"""Surrogates: the loss of one token given its ratio and advantage.

Invariant: each returns the loss per token (to be minimised) and a boolean per token that says whether the trust
region cut its gradient; nothing is averaged here.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

SurrogateKind = Literal["clip", "weighted_likelihood", "likelihood", "probability_gap"]


def clipped(ratio: Tensor, advantage: Tensor, *, low: float, high: float) -> tuple[Tensor, Tensor]:
    """−min(ρA, clip(ρ, 1−low, 1+high)A): PPO's surrogate with separate bounds."""
    free = -ratio * advantage
    bound = -torch.clamp(ratio, 1.0 - low, 1.0 + high) * advantage
    return torch.maximum(free, bound), bound > free


def weighted_likelihood(
    new: Tensor, ratio: Tensor, advantage: Tensor, *, low: float, high: float
) -> tuple[Tensor, Tensor]:
    """−stopgrad(clip(ρ))·A·new: CISPO (arXiv 2506.13585). Every token keeps a gradient, with a bounded weight."""
    weight = torch.clamp(ratio, 1.0 - low, 1.0 + high).detach()
    return -weight * advantage * new, weight != ratio.detach()


def likelihood(new: Tensor, advantage: Tensor) -> tuple[Tensor, Tensor]:
    """−A·new: REINFORCE with the group's baseline (RLOO, arXiv 2402.14740)."""
    return -advantage * new, torch.zeros_like(new, dtype=torch.bool)


def probability_gap(
    new: Tensor, old: Tensor, advantage: Tensor, *, low: float, high: float, penalty: float
) -> tuple[Tensor, Tensor]:
    """−ρA where the probability moved less than the bounds in the advantage's direction, + penalty·(log ρ)².

    The trust region is on p_new − p_old, not on their ratio, so that rare tokens are not cut for a small move.
    """
    gap = torch.exp(new.detach()) - torch.exp(old)
    cut = torch.where(advantage > 0, gap > high, gap < -low)
    log_ratio = new - old
    loss = -torch.exp(log_ratio) * advantage * (~cut) + penalty * log_ratio.square()
    return loss, cut
