"""Which seed an instance is made from.

Invariant: a seed is a pure function of (run seed, stage, domain, counter), so a restarted scheduler makes the
same instances; training seeds and held-out seeds never meet.
"""

from __future__ import annotations

import hashlib

from shared.domains.base import HELD_OUT_SEED


def train_seed(run_seed: int, stage_index: int, domain: str, counter: int) -> int:
    """A seed in [0, HELD_OUT_SEED)."""
    text = f"{run_seed}/{stage_index}/{domain}/{counter}".encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "big") % HELD_OUT_SEED


def held_out_seed(counter: int) -> int:
    """The same instances in every run, so that pass rates compare across runs."""
    return HELD_OUT_SEED + counter
