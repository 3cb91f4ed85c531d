"""How a kind of attention of ours becomes known to transformers.

Invariant: a pass that brings nothing of ours has the masks that SDPA would have.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor


def register(name: str, attention: Callable[..., Any]) -> None:
    """`model.set_attn_implementation(name)` then attends by `attention`, which transformers calls as its own."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(name, attention)
    AttentionMaskInterface.register(name, sdpa_mask)


def as_before(*arguments: Any, **how: Any) -> tuple[Tensor, None]:
    """For a pass that brings nothing of ours: what transformers' own function for SDPA gives."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    out, _ = sdpa_attention_forward(*arguments, **how)
    return out, None
