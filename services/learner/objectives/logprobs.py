"""Log-probabilities and entropies from logits, and from hidden states under a head of any kind.

Invariant: at most `chunk` rows of logits exist at a time, in the forward and in the backward pass. A linear head, as
almost all models have, is faster in `linear_head.py`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

CHUNK = 1024
"""Positions whose logits are held together."""


def selective_log_softmax(logits: Tensor, ids: Tensor) -> Tensor:
    """[…]: log softmax of `logits` […, vocabulary] at `ids` […]."""
    picked = logits.gather(-1, ids.unsqueeze(-1)).squeeze(-1)
    return picked - torch.logsumexp(logits, dim=-1)


def entropy_from_logits(logits: Tensor) -> Tensor:
    """[…]: entropy in nats of the distribution of `logits` […, vocabulary]."""
    normaliser = torch.logsumexp(logits, dim=-1)
    return normaliser - (torch.softmax(logits, dim=-1) * logits).sum(-1)


def token_statistics(
    hidden: Tensor,
    ids: Tensor,
    head: Callable[[Tensor], Tensor],
    chunk: int = CHUNK,
    entropy_gradient: bool = False,
) -> tuple[Tensor, Tensor]:
    """(log-probability [n], entropy [n]) of `ids` [n] under head(`hidden` [n, width]).

    The entropy has a gradient only where an entropy term asks for one. Logits are made in float32 at least. With more
    than one chunk each is computed again in the backward pass instead of being kept.
    """

    def piece(states: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        logits = head(states)
        if logits.dtype in {torch.bfloat16, torch.float16}:
            logits = logits.float()
        logprobs = torch.log_softmax(logits, dim=-1)
        with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
            entropy = -(logprobs.exp() * logprobs).sum(-1)
        return logprobs.gather(-1, targets.unsqueeze(-1)).squeeze(-1), entropy

    if hidden.shape[0] <= chunk:
        return piece(hidden, ids)
    keep = torch.is_grad_enabled()
    parts = [
        checkpoint(piece, states, targets, use_reentrant=False) if keep else piece(states, targets)
        for states, targets in zip(torch.split(hidden, chunk), torch.split(ids, chunk), strict=True)
    ]
    return torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])
