"""What a model must do to be trained here, found out when it is loaded.

Invariant: nothing is taken from its configuration that can be computed: a few tokens go through it both ways.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from services.learner.attention.spans import additive
from shared.errors import ConfigError

if TYPE_CHECKING:
    from services.learner.model import PolicyModel


def check_model(policy: PolicyModel) -> None:
    """Computes a small input both ways, and finds out whether rows may share their prefix.

    Raises `ConfigError` where splitting body and head changes the logits.
    """
    ids = (torch.arange(6, device=policy.device) * 7 + 1).remainder(policy.vocabulary)
    positions = torch.arange(6, device=policy.device)
    plain = _probe(policy, ids, positions, None)
    with torch.no_grad():
        whole = policy.model(input_ids=ids.unsqueeze(0), use_cache=False).logits[0]
    scale = max(1.0, float(whole.abs().max()))
    if float((plain - whole).abs().max()) > 1e-3 * scale:
        raise ConfigError(
            f"model type {policy.model.config.model_type!r} changes its logits after the head: it cannot be trained here"
        )
    if _forgets(policy.model.config):
        policy.packs = False
        return
    # One line: the branches [3, 4, 5] twice behind the prefix [0, 1, 2], then all six tokens as a row of their own.
    # Each must come out as it does alone.
    packed_ids = torch.cat([ids, ids[3:], ids])
    own = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 3, 3, 3], device=policy.device)
    prefix = torch.tensor([0] * 9 + [3] * 6, device=policy.device)
    seen = (own.unsqueeze(1) == own.unsqueeze(0)) | (prefix.unsqueeze(1) == own.unsqueeze(0))
    try:
        packed = _probe(
            policy, packed_ids, torch.cat([positions, positions[3:], positions]), seen.tril()[None, None]
        )
        error = float((packed - torch.cat([whole, whole[3:], whole])).abs().max())
    except (RuntimeError, ValueError, TypeError, NotImplementedError):
        error = float("inf")
    policy.packs = error <= 1e-3 * scale


def _forgets(config: Any) -> bool:
    """Whether a layer sees only the latest tokens: a mask of ours would replace its window, which a probe of a few
    tokens is too short to notice."""
    text = config.get_text_config()
    return any(getattr(text, name, None) for name in ("sliding_window", "attention_chunk_size"))


def _probe(policy: PolicyModel, ids: Tensor, positions: Tensor, mask: Tensor | None) -> Tensor:
    with torch.no_grad():
        states = policy.body(
            input_ids=ids.unsqueeze(0),
            attention_mask=None
            if mask is None
            else additive(mask, next(iter(policy.model.parameters())).dtype),
            position_ids=positions.unsqueeze(0),
            use_cache=False,
        ).last_hidden_state
        logits: Tensor = policy.head(states)[0]
    return logits
