"""Reward shaping that belongs to an objective, not to a verifier.

Invariant: shaping never changes a verdict, only the number that the advantage is made of.
"""

from __future__ import annotations


def overlong_penalty(length: int, limit: int, cache: int) -> float:
    """DAPO's soft penalty (arXiv 2503.14476): 0 up to `limit − cache` tokens, then linear to −1 at `limit`.

    `length` and `limit` are sampled tokens of one attempt; `cache` 0 means no penalty at all.
    """
    if cache <= 0:
        return 0.0
    over = length - (limit - cache)
    return -min(1.0, max(0, over) / cache)
