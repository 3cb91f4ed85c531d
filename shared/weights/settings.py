"""How new weights travel to the rollout processes: the `[publishing]` section of a run.

Invariant: full weights are in every checkpoint, whatever is said here: a delta is another way to the same bytes.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class PublishingSettings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)

    deltas: Literal["auto", "always", "never"] = "auto"
    """Announce beside the full weights what changed since the version before. `auto`: where bfloat16 is served and the
    object store is not a folder of this machine, which is read in place at no cost."""
    full_every: int = Field(default=16, ge=1)
    """Of so many versions one is announced as full weights alone; so is the first of every stage."""
    most_share: float = Field(default=0.5, gt=0, le=1)
    """A delta of more than this share of the full bytes is not worth its computation: full weights instead."""
