"""How a kind of attention of ours becomes known to transformers.

Invariant: a pass that brings nothing of ours has the masks that SDPA would have.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def register(name: str, attention: Callable[..., Any]) -> None:
    """`model.set_attn_implementation(name)` then attends by `attention`, which transformers calls as its own."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(name, attention)
    AttentionMaskInterface.register(name, sdpa_mask)
