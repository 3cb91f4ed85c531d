"""Which attempts are looked at twice.

Invariant: a function of the trajectory id alone, so that every delivery of an attempt, in whatever process, is
treated alike, and a policy cannot know: ids are made after its last token.
"""

from __future__ import annotations

import hashlib


def is_chosen(purpose: str, trajectory_id: str, share: float) -> bool:
    """True for `share` of all ids; shares of different purposes are independent of each other."""
    digest = hashlib.sha256(f"{purpose}/{trajectory_id}".encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") < share * 2**64
