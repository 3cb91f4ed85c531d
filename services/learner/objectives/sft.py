"""Supervised fine-tuning: imitate the tokens of a demonstration.

Invariant: a demonstration has no reward, no ratio and no advantage; only its masked tokens count.
"""

from __future__ import annotations

from torch import Tensor


def imitation_loss(new: Tensor) -> Tensor:
    """[n]: −log p per demonstrated token, from log-probabilities [n]."""
    return -new
