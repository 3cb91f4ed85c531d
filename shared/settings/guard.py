"""The guard: which steps are out of bounds, and what is done about them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from shared.settings.section import Section

GuardMetric = Literal[
    "kl",
    "entropy",
    "gradient_norm",
    "reward_jump",
    "not_finite",
    "logprob_gap_mean",
    "logprob_gap_max",
    "effective_sample_size",
    "clip_fraction",
]
"""What the guard is told of a step."""


class GuardBound(Section):
    """One declared bound: past `limit` for `patience` steps in a row, `action` is taken."""

    metric: GuardMetric
    """`reward_jump`: of one domain's mean reward from its own recent mean, in units of reward."""
    limit: float = 0.0
    """In the metric's own unit; `not_finite` needs none."""
    side: Literal["natural", "above", "below"] = "natural"
    """Which side of the limit is out of bounds; natural: below for entropy and effective sample size, else above."""
    action: Literal["lower_rate", "skip_batch", "roll_back", "pause"] = "pause"
    """`lower_rate` multiplies the rate; `skip_batch` drops the gradient; `roll_back` goes back to the last good
    checkpoint; `pause` waits for `temper resume`."""
    patience: int = Field(default=1, ge=1)
    """Steps in a row past the limit before anything is done."""


class GuardSettings(Section):
    """What a step may look like before the learner does something about it. After a pause `temper resume` goes on."""

    bounds: tuple[GuardBound, ...] = ()
    window: int = Field(default=16, ge=2)
    """Steps whose mean a reward is compared with; no jump is seen before half of them are there."""
    rate_factor: float = Field(default=0.5, gt=0, lt=1)
    """`lower_rate` multiplies the learning rate by it, and so does a roll-back: the same rate would fail again."""
    lowest_rate: float = Field(default=0.01, gt=0, le=1)
    """The rate is never lowered below this share of what the stage says."""
    recovery_steps: int = Field(default=20, ge=1)
    """Quiet steps after which one lowering is taken back."""
    max_roll_backs: int = Field(default=3, ge=0)
    """In one stage; one more would be a pause."""
    max_skips: int = Field(default=3, ge=0)
    """Batches in a row; one more would be a pause: by then it is not the data."""
    named: int = Field(default=8, ge=1)
    """Trajectories that a decision names for each bound."""

    @model_validator(mode="after")
    def _declared_once(self) -> GuardSettings:
        seen = set()
        for bound in self.bounds:
            key = (bound.metric, bound.side, bound.limit, bound.action)
            if key in seen:
                raise ValueError(
                    f"the bound {bound.limit:g} on {bound.metric} with action {bound.action!r} is declared twice; "
                    "keep one"
                )
            seen.add(key)
        return self
