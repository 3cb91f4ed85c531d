"""Which random numbers an attempt is drawn with.

Invariant: a function of the run, the slot and the scheduler's attempt alone, so that a redelivered task draws the
same tokens from the same weights, and a rescheduled one draws others.
"""

from __future__ import annotations

import hashlib


def sample_seed(run_seed: int, group_id: str, sample_index: int, attempt: int, hops: int = 0) -> int:
    """64 bits of sha256. `hops`: how often the attempt was handed back; the rest must not draw what was drawn before."""
    text = f"{run_seed}/{group_id}/{sample_index}/{attempt}" + (f"/{hops}" if hops else "")
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")
