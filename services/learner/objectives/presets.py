"""Presets: objectives as data, and what a run's configuration changes of them.

Invariant: a preset is a value, never a subclass; a key that no objective has is refused with the nearest name.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from services.learner.objectives.advantages import AdvantageKind
from services.learner.objectives.aggregation import AggregationKind
from services.learner.objectives.clipping import SurrogateKind
from services.learner.objectives.correction import CorrectionKind
from services.learner.objectives.kl import KlKind
from services.learner.objectives.ratios import RatioKind
from shared.errors import ConfigError
from shared.settings import ObjectiveSettings


class Objective(BaseModel):
    """Every choice that an objective is made of. The defaults are GRPO's (arXiv 2402.03300) without a KL term."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["imitation", "policy"] = "policy"
    advantage: AdvantageKind = "group_zscore"
    advantage_epsilon: float = Field(default=1e-6, ge=0)
    ratio: RatioKind = "token"
    surrogate: SurrogateKind = "clip"
    clip_low: float = Field(default=0.2, ge=0)
    clip_high: float = Field(default=0.2, ge=0)
    gap_penalty: float = Field(default=1e-3, ge=0)
    """Of `probability_gap`: the coefficient of (log ρ)²."""
    old_logprobs: Literal["sampler", "recompute"] = "sampler"
    """What the ratio divides by. `sampler`: what the rollout engine recorded, so staleness and engine mismatch
    are both inside the trust region. `recompute`: the learner's own before the step (one step a batch: ratio 1),
    with the gap to the sampler left to `correction`."""
    correction: CorrectionKind = "none"
    correction_low: float = Field(default=0.5, ge=0)
    correction_high: float = Field(default=2.0, gt=0)
    aggregation: AggregationKind = "sequence_mean"
    length_constant: int = Field(default=0, ge=0)
    """Of `sequence_sum_constant`; 0: the max_tokens of the batch's tasks."""
    kl_coefficient: float = Field(default=0.0, ge=0)
    """Above 0 the policy at the start of the stage is kept as the reference."""
    kl_estimator: KlKind = "k3"
    kl_target: float = Field(default=0.0, ge=0)
    """Above 0 the coefficient adapts to hold the KL there."""
    kl_horizon: int = Field(default=10_000, ge=1)
    kl_on_zero_signal: bool = False
    dynamic_sampling: bool = False
    """Groups without signal are dropped and replaced instead of counting towards the batch."""
    max_drawn_batches: int = Field(default=10, ge=1)
    """With dynamic sampling: after so many batches of dropped groups a step is taken with what there is."""
    overlong_cache: int = Field(default=0, ge=0)
    """Tokens before max_tokens over which DAPO's penalty grows to −1; 0 is none."""
    truncated: Literal["train", "drop"] = "train"
    """Attempts that ran into max_tokens: trained on with their reward, or dropped as over_length."""

    @model_validator(mode="after")
    def _consistent(self) -> Objective:
        if self.kl_target > 0 and self.kl_coefficient == 0:
            raise ValueError("kl_target needs a kl_coefficient above 0 to start from")
        if self.correction_low > self.correction_high:
            raise ValueError("correction_low is above correction_high")
        return self


PRESETS: Mapping[str, Mapping[str, Any]] = {
    "sft": {"kind": "imitation", "aggregation": "token_mean"},
    "grpo": {},
    "dr_grpo": {"advantage": "group_centered", "aggregation": "sequence_sum_constant"},
    "dapo": {"clip_high": 0.28, "aggregation": "token_mean", "dynamic_sampling": True},
    "gspo": {"ratio": "sequence", "clip_low": 3e-4, "clip_high": 4e-4},
    "cispo": {"surrogate": "weighted_likelihood", "clip_high": 0.28, "aggregation": "token_mean"},
    "rloo": {"advantage": "leave_one_out", "surrogate": "likelihood", "aggregation": "token_mean"},
    "decoupled_ppo": {
        "old_logprobs": "recompute",
        "correction": "masked",
        "correction_low": 0.0,
        "correction_high": 5.0,
        "aggregation": "token_mean",
    },
    "probability_gap": {"surrogate": "probability_gap", "aggregation": "token_mean"},
}


def _nearest(name: str, known: set[str]) -> str:
    close = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(sorted(known))}"


def preset(name: str, **overrides: Any) -> Objective:
    """The objective `name` with `overrides`.

    Raises `ConfigError` for an unknown preset or key (nearest name given) and for a value out of its range.
    """
    if name not in PRESETS:
        raise ConfigError(f"objective preset {name!r} does not exist{_nearest(name, set(PRESETS))}")
    for key in overrides:
        if key not in Objective.model_fields:
            raise ConfigError(
                f"objective override {key!r} does not exist{_nearest(key, set(Objective.model_fields))}"
            )
    try:
        return Objective.model_validate({**PRESETS[name], **overrides})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "objective"
        raise ConfigError(
            f"objective {name!r}: {where}: {first['msg'].removeprefix('Value error, ')}"
        ) from error


def objective_of(settings: ObjectiveSettings, stage_kind: str) -> Objective:
    """The objective of a stage. An `sft` stage imitates whatever preset the default names."""
    name = "sft" if stage_kind == "sft" and settings.preset == "grpo" else settings.preset
    objective = preset(name, **settings.overrides)
    if (objective.kind == "imitation") != (stage_kind == "sft"):
        raise ConfigError(
            f"objective preset {name!r} does not fit a stage of kind {stage_kind!r}: "
            + ("use 'sft'" if stage_kind == "sft" else "use one that has rewards, such as 'grpo'")
        )
    return objective
