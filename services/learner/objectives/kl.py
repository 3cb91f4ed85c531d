"""Estimators of KL(new ‖ other) from sampled tokens, and the rule that adapts a coefficient.

Invariant: an estimator's value and its gradient are named apart: `k3_k2_gradient` has the value of k3 and the
gradient of k2, which is the gradient of the true KL. (J. Schulman, "Approximating KL divergence", 2020.)
"""

from __future__ import annotations

import torch
from torch import Tensor

from services.learner.objectives.kinds import KlKind


def kl_estimate(new: Tensor, other: Tensor, kind: KlKind) -> Tensor:
    """[n] per token, with δ = other − new: k1 = −δ, k2 = δ²/2, k3 = e^δ − δ − 1, absolute = |δ|."""
    delta = other - new
    if kind == "k1":
        return -delta
    if kind == "k2":
        return delta.square() / 2
    if kind == "absolute":
        return delta.abs()
    k3 = torch.exp(delta) - delta - 1
    if kind == "k3":
        return k3
    k2 = delta.square() / 2
    return k2 - k2.detach() + k3.detach()


def adapted_coefficient(coefficient: float, kl: float, target: float, samples: int, horizon: int) -> float:
    """β·(1 + clip(KL/target − 1, ±0.2)·n/horizon): the coefficient for the next step (arXiv 1909.08593)."""
    error = max(-0.2, min(0.2, kl / target - 1))
    return coefficient * (1 + error * samples / horizon)
