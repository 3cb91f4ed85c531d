"""Presets: objectives as data, and what a run's configuration makes of them.

Invariant: a preset is a value, never a subclass; a name or a key that does not exist is refused with the nearest one,
and so is a key that the composed objective would not read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from services.learner.objectives.objective import Objective
from shared.errors import ConfigError
from shared.plain_errors import explain, nearest_or_all
from shared.settings import ObjectiveSettings

__all__ = ["PRESETS", "Objective", "compose", "objective_of", "own_objectives", "preset"]

PRESETS: Mapping[str, Mapping[str, Any]] = {
    "sft": {"kind": "imitation", "aggregation": "token_mean"},
    # arXiv 2402.03300
    "grpo": {},
    # 2503.20783: neither a sequence's length nor a group's deviation weighs.
    "dr_grpo": {"advantage": "group_centered", "aggregation": "sequence_sum_constant"},
    # 2503.14476: clip-higher, dynamic sampling, token mean, overlong shaping over the last fifth.
    "dapo": {
        "clip_high": 0.28,
        "aggregation": "token_mean",
        "dynamic_sampling": True,
        "overlong_fraction": 0.2,
    },
    # 2507.18071
    "gspo": {"ratio": "sequence", "clip_low": 3e-4, "clip_high": 4e-4},
    # 2506.13585
    "cispo": {"surrogate": "weighted_likelihood", "clip_high": 0.28, "aggregation": "token_mean"},
    # 2402.14740; a KL, if there is one, is part of the reward.
    "rloo": {
        "advantage": "leave_one_out",
        "surrogate": "likelihood",
        "aggregation": "token_mean",
        "kl_place": "reward",
        "kl_estimator": "k1",
    },
    # 2501.03262: no baseline in the group, one normalisation over the batch's tokens, KL as a reward per token.
    "reinforce_plus_plus": {
        "advantage": "raw",
        "batch_norm": "tokens",
        "aggregation": "token_mean",
        "kl_place": "reward",
        "kl_estimator": "k1",
    },
    # The same paper's form for several attempts a prompt: the group's mean first; KL in the loss with k2's gradient.
    "reinforce_plus_plus_baseline": {
        "advantage": "group_centered",
        "batch_norm": "tokens",
        "aggregation": "token_mean",
        "kl_estimator": "k2",
    },
    # 2110.00641, as AReaL has it (2505.24298)
    "decoupled_ppo": {
        "old_logprobs": "recompute",
        "correction": "masked",
        "correction_low": 0.0,
        "correction_high": 5.0,
        "aggregation": "token_mean",
    },
    "probability_gap": {"surrogate": "probability_gap", "aggregation": "token_mean"},
    # 2305.18290
    "dpo": {"kind": "preference"},
    # 2411.15124: log-ratios as means over an answer's tokens, with the larger β that this needs.
    "dpo_length_normalised": {"kind": "preference", "length_normalised": True, "beta": 5.0},
    # 2310.12036
    "ipo": {"kind": "preference", "preference": "squared"},
    # 2405.14734: γ/β = 0.5, within the paper's range.
    "simpo": {
        "kind": "preference",
        "length_normalised": True,
        "reference_free": True,
        "beta": 2.0,
        "margin": 1.0,
    },
}

_STAGES: Mapping[str, str] = {"imitation": "sft", "preference": "preference", "policy": "rl"}
"""The kind of stage in which an objective of each kind learns."""
_USUAL: Mapping[str, str] = {"sft": "sft", "preference": "dpo", "rl": "grpo"}


def preset(name: str, **overrides: Any) -> Objective:
    """The objective `name` with `overrides`.

    Raises `ConfigError` for an unknown preset or key (nearest name given), for a value out of its range, and for a
    key without effect.
    """
    if name not in PRESETS:
        raise ConfigError(f"objective preset {name!r} does not exist{nearest_or_all(name, PRESETS)}")
    return compose(PRESETS[name], overrides, name)


def compose(base: Mapping[str, Any], overrides: Mapping[str, Any], place: str) -> Objective:
    """The objective of `base` with `overrides` over it; `place` is the path of keys of the overrides, for errors.

    Raises as `preset`.
    """
    try:
        made = Objective.model_validate({**base, **overrides})
    except ValidationError as error:
        raise ConfigError(explain(Objective, error, under=place)) from error
    usual = Objective.model_construct(**base)
    for key in overrides:
        need = made.unread(key)
        if need and getattr(made, key) != getattr(usual, key):
            raise ConfigError(f"{place}.{key} has no effect here: it needs {need}")
    return made


def own_objectives(tables: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """The fields of each `[objectives.<name>]` table: those of its `preset` with the table's keys over them.

    Raises `ConfigError` for a table that is not valid, whether or not a stage uses it.
    """
    made: dict[str, Mapping[str, Any]] = {}
    for name, table in tables.items():
        if name in PRESETS:
            raise ConfigError(f"[objectives.{name}] has the name of a preset; give it a name of its own")
        base = table.get("preset", "grpo")
        if not isinstance(base, str) or base not in PRESETS:
            raise ConfigError(
                f"objectives.{name}.preset: {base!r} does not exist{nearest_or_all(str(base), PRESETS)}"
            )
        changes = {key: value for key, value in table.items() if key != "preset"}
        compose(PRESETS[base], changes, f"objectives.{name}")
        made[name] = {**PRESETS[base], **changes}
    return made


def objective_of(
    settings: ObjectiveSettings,
    stage_kind: str,
    own: Mapping[str, Mapping[str, Any]] | None = None,
    place: str = "objective",
) -> Objective:
    """The objective of a stage. `own` are the run's own objectives, from `own_objectives`; `place` is the path of
    keys of `settings`, for errors.

    A stage of another kind than `rl` that says nothing has the usual objective of its kind. Raises `ConfigError`.
    """
    bases = {**PRESETS, **(own or {})}
    said_nothing = settings.preset == ObjectiveSettings().preset
    name = _USUAL.get(stage_kind, settings.preset) if said_nothing else settings.preset
    if name not in bases:
        raise ConfigError(f"{place}.preset: {name!r} does not exist{nearest_or_all(name, bases)}")
    objective = compose(bases[name], settings.overrides, f"{place}.overrides")
    if _STAGES[objective.kind] != stage_kind:
        raise ConfigError(
            f"{place}.preset: {name!r} does not fit a stage of kind {stage_kind!r}: "
            f"use {_USUAL.get(stage_kind, 'grpo')!r} or another of its kind"
        )
    return objective
