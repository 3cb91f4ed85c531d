"""What attention adds to a row, so that layouts can be compared before anything is computed.

Invariant: costs are counted in tokens through the model's matrices, so those of different rows add up.

A layer's matrices take about 24·width² operations a token and its attention 4·width a pair of tokens (2·width where
a causal kernel skips the half that is not seen): t tokens cost t + t²/(6·width), or t + t²/(12·width). Attention
comes less close to what a processor can do: measured with SmolLM2's layers (width 576, forward and backward, 1,024 to
4,096 tokens), it was t²/(3.9·width) under a boolean mask and t²/(7.4·width) under the causal kernel. Hence 4 and 8.
"""

from __future__ import annotations

_MASKED, _CAUSAL = 4, 8


def masked(tokens: int, width: int) -> float:
    """Of one row under a mask; a `width` of 0 counts attention as free."""
    return tokens + (tokens**2 / (_MASKED * width) if width else 0.0)


def causal(tokens: int, width: int) -> float:
    """Of one row under the causal kernel."""
    return tokens + (tokens**2 / (_CAUSAL * width) if width else 0.0)
