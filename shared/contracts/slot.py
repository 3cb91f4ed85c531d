"""A slot: the unit that is trained at most once."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from shared.contracts.base import Part

Purpose = Literal["train", "eval", "probe"]
Stage = Literal["sft", "preference", "rl"]

Fate = Literal[
    "trained",
    "stale",
    "zero_signal",
    "faulted",
    "over_length",
    "duplicate",
    "invalid",
    "unverifiable",
    "expired",
    "skipped",
    "unpaired",
    "surplus",
]
"""What became of a slot: trained, or the cause for which it was dropped.

skipped: the guard dropped the gradient of its batch. unpaired: neither the best nor the worst of its group.
surplus: its group had enough attempts without it (`oversample`)."""


class Slot(Part):
    """(run, group, sample index). A trajectory id is unique to an attempt; a slot is what attempts compete for."""

    run_id: str
    group_id: str
    sample_index: int = Field(ge=0)

    def __str__(self) -> str:
        return f"{self.run_id}/{self.group_id}/{self.sample_index}"
