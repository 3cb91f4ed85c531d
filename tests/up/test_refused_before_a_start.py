"""`temper up` refuses what no attempt could use before anything is started: the run's folder is not even made."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shared.errors import ConfigError
from shared.settings import Settings, parse_settings
from temper.up.refusing import refuse_mistakes
from temper.up.resolved import to_toml

FAULTY = "tests.verification.faulty:"


def settings_of(tmp_path: Path, domain: str, episode: dict[str, Any] | None = None) -> Settings:
    return parse_settings(
        {
            "run": {"name": "r", "folder": str(tmp_path / "runs")},
            "model": {"path": "m"},
            "bus": {"bootstrap_servers": "127.0.0.1:9"},
            "domains": [{"name": domain, "episode": episode or {}}],
            "stages": [{"kind": "rl", "steps": 1}],
        }
    )


@pytest.mark.parametrize(
    ("domain", "episode", "words"),
    [
        ("NamesAToolNobodyHas", {}, "'names_a_tool_nobody_has': a draft names tool 'bas', .* mean 'bash'"),
        ("NamesNoToolOfItsOwn", {}, "a draft names tool 'incremnt', .* mean 'increment'"),
        ("Copying", {"tools": ["pyhton"]}, "its episode gives tool 'pyhton', .* mean 'python'"),
        ("Copying", {"agent": {"command": ["x"], "folder": "/none/of/it"}},
         f"domain '{FAULTY}Copying': episode.agent.folder is '/none/of/it': there is no such folder; give"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line(tmp_path: Path, domain: str, episode: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        refuse_mistakes(settings_of(tmp_path, FAULTY + domain, episode))


@pytest.mark.parametrize(
    ("domain", "episode"),
    [
        ("NamesItsOwnTool", {}),
        ("Copying", {"tools": ["python"]}),
        ("NamesAToolNobodyHas", {"tools": ["bash"]}),  # the episode's are given in its place
        ("NamesAToolNobodyHas", {"agent": {"command": ["x"]}}),  # a program has tools of its own
        ("CannotMakeItsTools", {}),  # it may make them beside a sandbox
    ],
)
def test_what_an_attempt_can_have_passes(tmp_path: Path, domain: str, episode: dict[str, Any]) -> None:
    refuse_mistakes(settings_of(tmp_path, FAULTY + domain, episode))


def test_up_ends_with_2_and_makes_no_folder(tmp_path: Path) -> None:
    config = tmp_path / "run.toml"
    config.write_text(to_toml(settings_of(tmp_path, "code_repair", {"tools": ["bas"]})))
    command = [sys.executable, "-P", "-m", "temper", "up", str(config)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 2 and "did you mean 'bash'" in ended.stderr, ended.stderr
    assert len(ended.stderr.splitlines()) == 1 and not (tmp_path / "runs").exists()


def test_a_rollout_asks_no_broker_before_it_has_read_its_agents(tmp_path: Path) -> None:
    agent = {"command": ["x"], "folder": str(tmp_path / "none")}
    config = tmp_path / "run.toml"
    config.write_text(to_toml(settings_of(tmp_path, "arithmetic", {"agent": agent})))
    command = [sys.executable, "-P", "-m", "temper", "rollout", "--config", str(config)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 2 and len(ended.stderr.splitlines()) == 1, ended.stderr
    assert f"episode.agent.folder is '{tmp_path / 'none'}': there is no such folder" in ended.stderr
