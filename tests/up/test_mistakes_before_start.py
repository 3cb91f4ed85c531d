"""A mistake in what is learnt is told before anything is started, and takes no run's name."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from shared.errors import ConfigError
from shared.settings import Settings, parse_settings
from temper.up.resolved import claim
from temper.up.run import run_settings
from tests.end_to_end.local_run import temper
from tests.model_folders import small_folder

RUN = """
[run]
name = "mistaken"
folder = "{folder}/runs"
[model]
path = "{folder}/model"
[bus]
bootstrap_servers = "127.0.0.1:1"
connect_timeout_s = 1
[[domains]]
name = "arithmetic"
[[stages]]
steps = 1
"""

MISTAKES = {
    'kind = "rl"\nobjective = { preset = "grop" }': "did you mean 'grpo'",
    'kind = "rl"\nobjective = { overrides = { clip_hgh = 0.3 } }': "did you mean 'clip_high'",
    'kind = "rl"\n[objectives.mine]\nclip_hgh = 0.3': "did you mean 'clip_high'",
    'kind = "rl"\n[objectives.mine]\nclip_high = "wide"': "clip_high.*number",
    'kind = "rl"\n[objectives.mine]\nclip_high = -1': "clip_high.*0",
    'kind = "rl"\n[objectives.mine]\naggregation = "token_meen"': "aggregation.*'token_mean'",
    'kind = "rl"\n[objectives.mine]\nkl_target = 0.1': "kl_target is 0.1 and kl_coefficient 0",
    'kind = "preference"\nobjective = { preset = "dpo", overrides = { clip_high = 0.3 } }': "has no effect here",
    'kind = "rl"\nobjective = { preset = "dpo" }': "does not fit a stage of kind 'rl'",
}
NOWHERE = 'kind = "rl"\nstart_from = "nowhere"'


def text_of(tmp_path: Path, mistake: str) -> str:
    small_folder(tmp_path / "model")
    return RUN.format(folder=tmp_path) + mistake


def settings_of(tmp_path: Path, mistake: str) -> Settings:
    return parse_settings(tomllib.loads(text_of(tmp_path, mistake)))


@pytest.mark.parametrize(("mistake", "message"), [*MISTAKES.items(), (NOWHERE, "nowhere' is no checkpoint")])
def test_a_run_is_not_begun(mistake: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        run_settings(settings_of(tmp_path, mistake))
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(("mistake", "message"), MISTAKES.items())
def test_a_folder_is_not_claimed(mistake: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        claim(settings_of(tmp_path, mistake))
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("command", "mistake"),
    [
        (["up"], NOWHERE),
        (["learner", "--config"], NOWHERE),
        (["scheduler", "--config"], 'kind = "rl"\n[objectives.mine]\nclip_hgh = 0.3'),
    ],
)
def test_a_command_says_it_in_one_line_and_waits_for_nothing(
    command: list[str], mistake: str, tmp_path: Path
) -> None:
    config = tmp_path / "bad.toml"
    config.write_text(text_of(tmp_path, mistake))
    result = temper(*command, str(config))
    assert result.returncode == 2 and result.stderr.count("\n") == 1, result.stderr
    assert ("nowhere" if mistake == NOWHERE else "clip_hgh") in result.stderr
    assert not (tmp_path / "runs").exists()


def test_the_check_needs_no_torch() -> None:
    probe = (
        "import sys, services.learner.stages, services.learner.sources\n"
        "sys.exit(any(name in sys.modules for name in ('torch', 'transformers', 'vllm')))"
    )
    assert subprocess.run([sys.executable, "-c", probe], timeout=60, check=False).returncode == 0
