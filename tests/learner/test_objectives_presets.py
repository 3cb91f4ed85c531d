"""Objectives from a run's TOML: presets as data, own ones, and every mistake named with its mend."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from services.learner.objectives.objective import Objective
from services.learner.objectives.presets import PRESETS, objective_of, own_objectives, preset
from services.learner.stages import check_stages
from shared.errors import ConfigError
from shared.settings import ObjectiveSettings, load_settings, parse_settings
from temper.up.resolved import resolve, to_toml

RUN = """
[run]
name = "own"
[model]
path = "models/tiny"
[[domains]]
name = "sums"
"""
MINE = """
[objectives.mine]
preset = "dapo"
clip_dual = 3.0
kl_coefficient = 0.01

[[stages]]
kind = "sft"
steps = 1

[[stages]]
kind = "rl"
steps = 1
[stages.objective]
preset = "mine"
[stages.objective.overrides]
kl_coefficient = 0.02
"""


def objectives(text: str) -> tuple[Objective, ...]:
    return check_stages(parse_settings(tomllib.loads(RUN + text)))


def test_the_issue_names_its_presets() -> None:
    names = "grpo dr_grpo dapo gspo cispo rloo reinforce_plus_plus decoupled_ppo sft dpo ipo"
    assert set(names.split()) <= set(PRESETS)
    for name in PRESETS:
        made = preset(name)
        needless = {key: made.unread(key) for key in PRESETS[name] if made.unread(key)}
        # What a preset says beyond what it reads is where its KL would go, if a run gives it a coefficient.
        assert set(needless) <= {"kl_place", "kl_estimator"}, needless


def test_presets_say_what_their_papers_say() -> None:
    dapo = preset("dapo")
    assert (dapo.clip_low, dapo.clip_high, dapo.dynamic_sampling) == (0.2, 0.28, True)
    assert dapo.overlong_tokens(20_480) == 4_096 and dapo.overlong_tokens(4) == 0
    assert preset("dapo", overlong_cache=100).overlong_tokens(20_480) == 100
    assert preset("grpo").overlong_tokens(20_480) == 0
    plain, based = preset("reinforce_plus_plus"), preset("reinforce_plus_plus_baseline")
    assert (plain.advantage, plain.batch_norm, plain.kl_place) == ("raw", "tokens", "reward")
    assert (based.advantage, based.batch_norm, based.kl_estimator) == ("group_centered", "tokens", "k2")


def test_a_run_composes_its_own() -> None:
    sft, mine = objectives(MINE)
    assert sft == preset("sft")
    assert mine == preset("dapo", clip_dual=3.0, kl_coefficient=0.02)


def test_an_own_objective_survives_the_resolved_file(tmp_path: Path) -> None:
    settings = resolve(parse_settings(tomllib.loads(RUN + MINE)))
    (tmp_path / "run.toml").write_text(to_toml(settings))
    again = load_settings(tmp_path / "run.toml", {})
    assert again == settings
    assert check_stages(again) == objectives(MINE)


STAGE = '[[stages]]\nkind = "rl"\nsteps = 1\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            STAGE + 'objective = { preset = "mine" }\n[objectives.mnie]\npreset = "dapo"',
            r"'mine' does not exist; did you mean 'mnie'\?",
        ),
        (STAGE + '[objectives.dapo]\npreset = "grpo"', r"\[objectives\.dapo\] has the name of a preset"),
        (
            STAGE + '[objectives.mine]\npreset = "drgrpo"',
            r"objectives\.mine\.preset: 'drgrpo'.*did you mean 'dr_grpo'",
        ),
        (STAGE + "[objectives.mine]\npreset = 3", r"objectives\.mine\.preset: 3 does not exist"),
        (
            STAGE + "[objectives.mine]\nclip_hihg = 0.3",
            r"unknown key 'objectives\.mine\.clip_hihg'; did you mean 'clip_high'",
        ),
        (
            STAGE + '[objectives.mine]\nclip_high = "wide"',
            r"^objectives\.mine\.clip_high is 'wide': it must be a number$",
        ),
        (
            STAGE + "[objectives.mine]\nclip_dual = 0.5",
            r"objectives\.mine: clip_dual is 0\.5: it must be over 1",
        ),
        (
            STAGE + "objective = { overrides = { clip_low = -1, clip_hgh = 3 } }",
            r"^stages\.0\.objective\.overrides\.clip_low is -1: it must be at least 0; unknown key 'stages\.0\.objective\."
            r"overrides\.clip_hgh'; did you mean 'clip_high'\?$",
        ),
        (
            STAGE + '[objectives.mine]\naggregation = "token_meen"',
            r"^objectives\.mine\.aggregation is 'token_meen': it must be .*; did you mean 'token_mean'\?$",
        ),
        (
            STAGE + 'objective = { preset = "dpo" }',
            r"'dpo' does not fit a stage of kind 'rl': use 'grpo'",
        ),
    ],
)
def test_a_mistake_in_the_file_is_named(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        objectives(text)


@pytest.mark.parametrize(
    ("name", "override", "need"),
    [
        ("grpo", {"kl_estimator": "k2"}, "a kl_coefficient above 0"),
        ("grpo", {"kl_coefficient": 0.1, "kl_horizon": 5}, "a kl_target above 0"),
        ("grpo", {"correction": "truncated"}, "old_logprobs = 'recompute'"),
        ("grpo", {"correction_high": 3.0}, "a correction"),
        ("grpo", {"length_constant": 8}, "aggregation = 'sequence_sum_constant'"),
        ("grpo", {"max_drawn_batches": 3}, "dynamic_sampling = true"),
        ("grpo", {"beta": 0.3}, "a preference objective"),
        ("grpo", {"gap_penalty": 0.3}, "surrogate = 'probability_gap'"),
        ("rloo", {"clip_high": 0.3}, "a surrogate that clips"),
        ("rloo", {"ratio": "sequence"}, "a surrogate with a ratio"),
        ("cispo", {"clip_dual": 3.0}, "surrogate = 'clip'"),
        ("ipo", {"margin": 1.0}, "preference = 'sigmoid'"),
        ("dpo", {"clip_high": 0.3}, "an objective with rewards"),
        ("dpo", {"entropy_coefficient": 0.1}, "an objective without pairs"),
        ("sft", {"advantage": "raw"}, "an objective with rewards"),
    ],
)
def test_a_setting_without_effect_is_refused(name: str, override: dict[str, Any], need: str) -> None:
    with pytest.raises(ConfigError, match=f"{list(override)[-1]} has no effect here: it needs {need}"):
        preset(name, **override)
    usual = {key: getattr(preset(name), key) for key in override if key != "kl_coefficient"}
    assert preset(name, **usual) == preset(name)  # saying what is so anyway is no mistake


@pytest.mark.parametrize(
    ("name", "override", "message"),
    [
        (
            "grpo",
            {"kl_coefficient": 0.1, "kl_target": 0.1, "kl_floor": 0.2},
            "outside kl_floor and kl_ceiling",
        ),
        ("reinforce_plus_plus", {"dynamic_sampling": True}, "'raw' does not compare"),
        ("sft", {"kl_coefficient": 0.1, "kl_place": "reward"}, "needs an objective with rewards"),
        ("dpo", {"label_smoothing": 0.5}, "label_smoothing"),
        ("grpo", {"clip_high": float("nan")}, "clip_high"),
    ],
)
def test_a_combination_that_means_nothing_is_refused(
    name: str, override: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        preset(name, **override)


def test_a_stage_that_says_nothing_has_the_usual_objective() -> None:
    for kind, usual in (("sft", "sft"), ("rl", "grpo"), ("preference", "dpo")):
        assert objective_of(ObjectiveSettings(), kind) == preset(usual)
    with pytest.raises(ConfigError, match="use 'dpo'"):
        objective_of(ObjectiveSettings(preset="gspo"), "preference")
    own = own_objectives({"sharp": {"preset": "dpo", "beta": 0.5}})
    assert objective_of(ObjectiveSettings(preset="sharp"), "preference", own).beta == 0.5
