"""Attention over the blocks that are seen (`torch.nn.attention.flex_attention`), as transformers calls it.

Invariant: a pass that comes without blocks is attended as it was before.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from services.learner.attention.registry import as_before, register

ATTENTION = "temper_blocks"
"""The name under which a model is told to use `attention`."""


def use_in(model: Any) -> Callable[[], None]:
    """Tells the model to attend so; the call that takes it back."""
    register(ATTENTION, attention)
    before = model.config._attn_implementation
    model.set_attn_implementation(ATTENTION)
    return lambda: model.set_attn_implementation(before)


def attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    blocks: Any = None,
    **how: Any,
) -> tuple[Tensor, None]:
    """query [b, heads, t, d], key and value [b, fewer heads, t, d] → [b, t, heads, d]."""
    if blocks is None:
        return as_before(module, query, key, value, attention_mask, **how)
    device = query.device.type
    if torch.is_autocast_enabled(device):  # which knows SDPA and not this kernel
        low = torch.get_autocast_dtype(device)
        query, key, value = query.to(low), key.to(low), value.to(low)
    shared = query.shape[1] != key.shape[1]
    out = attend(device)(query, key, value, block_mask=blocks, scale=how.get("scaling"), enable_gqa=shared)
    return out.transpose(1, 2).contiguous(), None


@functools.cache
def attend(device: str) -> Callable[..., Tensor]:
    """Compiled for an accelerator. On a processor it computes everything, and has no gradient."""
    from torch.nn.attention.flex_attention import flex_attention

    kernel: Any = flex_attention
    compiled: Callable[..., Tensor] = kernel if device == "cpu" else torch.compile(kernel)
    return compiled


def nobodys_mask(device: torch.device) -> Tensor:
    """For a pass that is attended by ours: one of four dimensions keeps the model from making its own."""
    return torch.ones(1, 1, 1, 1, dtype=torch.bool, device=device)
