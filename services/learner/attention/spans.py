"""What each token of a line sees: earlier tokens of its row's prefix and of its own branch, and itself.

Invariant: said once, for a mask that any kernel takes and for blocks, of which a kernel skips those that nobody sees.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

BLOCK = 128
"""Lines that are computed by blocks are padded to a multiple of it: the kernel is compiled for fewer lengths."""


@dataclass(frozen=True, slots=True)
class Spans:
    """int32[b, t] of b lines of t tokens: each token's own segment, and that of its row's prefix."""

    segments: Tensor
    parents: Tensor

    def mask(self) -> Tensor:
        """bool[b, 1, t, t]: who sees whom."""
        own = self.segments.unsqueeze(2) == self.segments.unsqueeze(1)
        prefix = self.parents.unsqueeze(2) == self.segments.unsqueeze(1)
        return (own | prefix).tril_().unsqueeze(1)

    def blocks(self) -> Any:
        """The same as a `BlockMask` of `torch.nn.attention.flex_attention`."""
        from torch.nn.attention.flex_attention import create_block_mask

        segments, parents = self.segments, self.parents

        def seen(line: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            of_key = segments[line, key]
            related = (segments[line, query] == of_key) | (parents[line, query] == of_key)
            return related & (query >= key)

        b, t = segments.shape
        return create_block_mask(seen, b, None, t, t, device=str(segments.device), BLOCK_SIZE=BLOCK)


def additive(seen: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where `seen`, −∞ elsewhere, in the dtype of the queries. Of a boolean mask every layer would make such a
    tensor and keep it."""
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, float("-inf"))
