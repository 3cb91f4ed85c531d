"""Surrogates: the loss of one token given its ratio and advantage.

Invariant: each returns the loss per token (to be minimised) and a boolean per token that says whether the trust
region cut its gradient; nothing is averaged here.
"""

from __future__ import annotations

import torch
from torch import Tensor


def clipped(
    ratio: Tensor, advantage: Tensor, *, low: float, high: float, dual: float = 0.0
) -> tuple[Tensor, Tensor]:
    """−min(ρA, clip(ρ, 1−low, 1+high)A): PPO's surrogate (arXiv 1707.06347) with separate bounds (DAPO, 2503.14476).

    `dual` above 1 also bounds what a bad token may cost: −max(that, dual·A) where A < 0 (dual clip, 1912.09729);
    without it the loss of a token with A < 0 grows with ρ for ever. 0 is none.
    """
    free = -ratio * advantage
    bound = -torch.clamp(ratio, 1.0 - low, 1.0 + high) * advantage
    loss, cut = torch.maximum(free, bound), bound > free
    if dual <= 0:
        return loss, cut
    ceiling = -dual * advantage
    over = (advantage < 0) & (loss > ceiling)
    return torch.where(over, ceiling.to(loss.dtype), loss), cut | over


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
