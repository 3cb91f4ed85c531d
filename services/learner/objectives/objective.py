"""An objective as a value: every choice that it is made of.

Invariant: an `Objective` is whole and consistent (a combination that means nothing is refused when it is made), and
it knows which of its fields are read, so that a setting without effect can be refused by name.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from services.learner.objectives.kinds import (
    AdvantageKind,
    AggregationKind,
    BatchNormKind,
    CorrectionKind,
    KlKind,
    KlPlace,
    ObjectiveKind,
    PreferenceKind,
    RatioKind,
    SurrogateKind,
)


class Objective(BaseModel):
    """The defaults are GRPO's (arXiv 2402.03300) without a KL term."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    kind: ObjectiveKind = "policy"

    # What an attempt is worth.
    advantage: AdvantageKind = "group_zscore"
    advantage_epsilon: float = Field(default=1e-6, ge=0)
    batch_norm: BatchNormKind = "none"
    """Advantages normalised once more over the whole batch; its statistics count attempts or tokens."""
    overlong_fraction: float = Field(default=0.0, ge=0, le=1)
    """Share of max_tokens at its end over which DAPO's penalty grows to −1 (4,096 of 20,480 in the paper)."""
    overlong_cache: int = Field(default=0, ge=0)
    """The same in tokens; above 0 it is used instead of the fraction."""
    truncated: Literal["train", "drop"] = "train"
    """Attempts that ran into max_tokens: trained on with their reward, or dropped as over_length."""
    dynamic_sampling: bool = False
    """Groups that the verifier found all alike are dropped and replaced instead of counting towards the batch."""
    max_drawn_batches: int = Field(default=10, ge=1)
    """With dynamic sampling: after so many batches of dropped groups a step is taken with what there is."""

    # How far one step may move.
    ratio: RatioKind = "token"
    surrogate: SurrogateKind = "clip"
    clip_low: float = Field(default=0.2, ge=0)
    clip_high: float = Field(default=0.2, ge=0)
    clip_dual: float = Field(default=0.0, ge=0)
    """Of `clip`: above 1, bounds the loss of a token with a negative advantage at −clip_dual·A; 0 is none."""
    gap_penalty: float = Field(default=1e-3, ge=0)
    """Of `probability_gap`: the coefficient of (log ρ)²."""
    old_logprobs: Literal["sampler", "recompute"] = "sampler"
    """What the ratio divides by. `sampler`: what the rollout engine recorded, so staleness and engine mismatch
    are both inside the trust region. `recompute`: the learner's own before the step (one step a batch: ratio 1),
    with the gap to the sampler left to `correction`."""
    correction: CorrectionKind = "none"
    correction_low: float = Field(default=0.5, ge=0)
    correction_high: float = Field(default=2.0, gt=0)

    # How tokens become one number.
    aggregation: AggregationKind = "sequence_mean"
    length_constant: int = Field(default=0, ge=0)
    """Of `sequence_sum_constant`; 0: the max_tokens of the batch's tasks."""

    # What holds the policy where it is.
    entropy_coefficient: float = Field(default=0.0, ge=0)
    """Times the entropy, subtracted from the loss."""
    kl_coefficient: float = Field(default=0.0, ge=0)
    """Above 0 the policy at the start of the stage is kept as the reference."""
    kl_place: KlPlace = "loss"
    kl_estimator: KlKind = "k3"
    kl_target: float = Field(default=0.0, ge=0)
    """Above 0 the coefficient adapts to hold the KL there."""
    kl_horizon: int = Field(default=10_000, ge=1)
    """Attempts over which an error of 100 % would change the coefficient by its own size."""
    kl_floor: float = Field(default=1e-6, gt=0)
    kl_ceiling: float = Field(default=10.0, gt=0)
    """The adapted coefficient stays in [kl_floor, kl_ceiling]: at 0 it could never grow again."""
    kl_on_zero_signal: bool = False
    reference_refresh_steps: int = Field(default=0, ge=0)
    """Above 0 the reference is renewed from the policy at the first checkpoint after so many steps; 0: frozen."""

    # Pairs.
    preference: PreferenceKind = "sigmoid"
    beta: float = Field(default=0.1, gt=0)
    margin: float = Field(default=0.0, ge=0)
    """Of `sigmoid`: γ, by which β·h must exceed 0 before a pair counts as learnt."""
    label_smoothing: float = Field(default=0.0, ge=0, lt=0.5)
    length_normalised: bool = False
    """Means over an answer's tokens instead of sums."""
    reference_free: bool = False

    @model_validator(mode="after")
    def _consistent(self) -> Objective:
        if self.kl_target > 0 and self.kl_coefficient == 0:
            raise ValueError(
                f"kl_target is {self.kl_target:g} and kl_coefficient 0: it needs one above 0 to start from"
            )
        if self.kl_target > 0 and not self.kl_floor <= self.kl_coefficient <= self.kl_ceiling:
            raise ValueError(
                f"kl_coefficient is {self.kl_coefficient:g}, outside kl_floor and kl_ceiling: it must be "
                f"{self.kl_floor:g} to {self.kl_ceiling:g}"
            )
        if self.correction_low > self.correction_high:
            raise ValueError(
                f"correction_low is {self.correction_low:g}: it must be at most correction_high, "
                f"{self.correction_high:g}"
            )
        if 0 < self.clip_dual <= 1:
            raise ValueError(f"clip_dual is {self.clip_dual:g}: it must be over 1, or 0 for none")
        if self.dynamic_sampling and self.advantage == "raw":
            raise ValueError(
                "dynamic_sampling is true: it drops groups that are all alike, which advantage 'raw' does not compare"
            )
        if self.kl_place == "reward" and self.kind != "policy":
            raise ValueError("kl_place is 'reward', which needs an objective with rewards; use 'loss'")
        return self

    @property
    def needs_reference(self) -> bool:
        """Whether the policy of the stage's beginning is kept, frozen, to be measured against."""
        if self.kind == "preference":
            return not self.reference_free
        return self.kl_coefficient > 0

    @property
    def skips_ties(self) -> bool:
        """Whether a group that is all alike takes no place in a batch."""
        return self.dynamic_sampling or self.kind == "preference"

    def overlong_tokens(self, limit: int) -> int:
        """Tokens before a limit of `limit` over which the length penalty grows; 0 is no penalty."""
        return self.overlong_cache or math.floor(self.overlong_fraction * limit)

    def unread(self, field: str) -> str:
        """What `field` would need to have an effect; empty where it is read."""
        for need, fields, holds in _NEEDS:
            if field in fields and not holds(self):
                return need
        return ""


_ANY = {"kind", "aggregation", "length_constant", "entropy_coefficient", "kl_coefficient"}
_KL = {"kl_estimator", "kl_place", "kl_target", "kl_on_zero_signal", "reference_refresh_steps"}
_ADAPTIVE = {"kl_horizon", "kl_floor", "kl_ceiling"}
_PAIRS = {"preference", "beta", "margin", "label_smoothing", "length_normalised", "reference_free"}
_REWARDS = set(Objective.model_fields) - _ANY - _KL - _ADAPTIVE - _PAIRS

_NEEDS: tuple[tuple[str, set[str], Callable[[Objective], bool]], ...] = (
    ("a preference objective, such as 'dpo'", _PAIRS, lambda o: o.kind == "preference"),
    ("an objective with rewards, such as 'grpo'", _REWARDS, lambda o: o.kind == "policy"),
    (
        "an objective without pairs",
        _KL | _ADAPTIVE | _ANY - {"kind"},
        lambda o: o.kind != "preference",
    ),
    ("preference = 'sigmoid'", {"margin", "label_smoothing"}, lambda o: o.preference == "sigmoid"),
    ("surrogate = 'clip'", {"clip_dual"}, lambda o: o.surrogate == "clip"),
    ("surrogate = 'probability_gap'", {"gap_penalty"}, lambda o: o.surrogate == "probability_gap"),
    ("a surrogate that clips", {"clip_low", "clip_high"}, lambda o: o.surrogate != "likelihood"),
    (
        "a surrogate with a ratio ('clip', 'weighted_likelihood')",
        {"ratio"},
        lambda o: o.surrogate in {"clip", "weighted_likelihood"},
    ),
    ("old_logprobs = 'recompute'", {"correction"}, lambda o: o.old_logprobs == "recompute"),
    ("a correction", {"correction_high"}, lambda o: o.correction != "none"),
    ("a correction that masks", {"correction_low"}, lambda o: o.correction in {"masked", "masked_sequence"}),
    (
        "aggregation = 'sequence_sum_constant'",
        {"length_constant"},
        lambda o: o.aggregation == "sequence_sum_constant",
    ),
    ("a kl_coefficient above 0", _KL, lambda o: o.kl_coefficient > 0),
    ("a kl_target above 0", _ADAPTIVE, lambda o: o.kl_target > 0),
    ("dynamic_sampling = true", {"max_drawn_batches"}, lambda o: o.dynamic_sampling),
)
"""What each field needs to be read, the general need before the special one."""
