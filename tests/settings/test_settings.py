"""Configuration: every mistake has one line that names it; the environment overrides."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from shared.errors import ConfigError
from shared.settings import load_settings

GOOD = """
[run]
name = "r"
[model]
path = "m"
[[domains]]
name = "arithmetic"
[[stages]]
kind = "rl"
steps = 2
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "run.toml"
    path.write_text(text)
    return path


def test_defaults_and_folders(tmp_path: Path) -> None:
    settings = load_settings(write(tmp_path, GOOD), {})
    assert settings.storage_uri.endswith("/runs/r/objects")
    assert settings.scheduler.max_lag == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (GOOD.replace("steps", "stesp"), r"unknown key 'stages.0.stesp'; did you mean 'steps'\?"),
        (GOOD.replace("[model]", "[modle]"), r"unknown key 'modle'; did you mean 'model'\?"),
        (GOOD.replace("steps = 2", 'steps = "two"'), "stages.0.steps is 'two': it must be a whole number$"),
        (GOOD.replace('[[stages]]\nkind = "rl"\nsteps = 2', ""), "key 'stages' is missing"),
        (
            GOOD.replace('"rl"', '"ppo"'),
            "toml: stages.0.kind is 'ppo': it must be 'sft', 'preference' or 'rl'$",
        ),
        (GOOD.replace('"rl"', '"stf"'), r"it must be 'sft', 'preference' or 'rl'; did you mean 'sft'\?$"),
        # An error inside the one entry of a list made pydantic call the list too short as well.
        (GOOD.replace("steps = 2", "steps = 0"), "toml: stages.0.steps is 0: it must be at least 1$"),
        (
            GOOD.replace('name = "arithmetic"', "name = 3"),
            "toml: domains.0.name is 3: it must be text, in quotes$",
        ),
        (GOOD.replace("[[stages]]", "[stages]"), r"it must be a list of tables: write \[\[stages\]\]$"),
        (GOOD.replace('[run]\nname = "r"', 'run = "r"'), r"run is 'r': it must be a table \(key = value\)$"),
        (GOOD + "learning_rate = inf", "stages.0.learning_rate is inf: it must be a finite number$"),
        (GOOD + "[learner]\nbetas = [0.9]", "learner.betas: entry 2 is missing$"),
        (GOOD + "[zzz]\nx = 1", "unknown key 'zzz'; known: auditor, bus, domains"),
        ("stages = []\n" + GOOD.split("[[stages]]", maxsplit=1)[0], "stages has no entry: give at least 1$"),
        (
            GOOD + '[bus]\nbootstrap_servers = "garbage"',
            "'garbage' is no address of a broker: write host:port",
        ),
        (GOOD + '[bus]\nbootstrap_servers = "a:1,b:x"', "'b:x' is no address of a broker: write host:port"),
        (GOOD + '[bus]\nbootstrap_servers = "host:99999"', "'host:99999' is no address .* port 1 to 65535$"),
        (GOOD + "group_size = 1", "group of one has no advantage"),
        (GOOD.replace('"rl"', '"preference"') + "group_size = 1", "group of one makes no pair"),
        (GOOD + 'data = "pairs.jsonl"', "an rl stage learns from verified attempts: it has no data"),
        (GOOD + 'domains = ["arithmetik"]', r"'arithmetik' is not declared; .* did you mean 'arithmetic'\?"),
        (GOOD + "[learner]\ncheckpoint_every = 3", "checkpoint_every is 3 and scheduler.max_lag is 1"),
        (GOOD.replace('"r"', '"../r"'), "run.name"),
        ("[run", "not valid TOML"),
    ],
)
def test_one_line_names_the_mistake(tmp_path: Path, change: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        load_settings(write(tmp_path, change), {})
    assert "\n" not in str(caught.value) and caught.value.exit_code == 2
    assert not re.search(r"[Ii]nput|[Tt]uple|validation|Settings", str(caught.value)), "pydantic's own words"


def test_a_missing_or_unreadable_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        load_settings(tmp_path / "nothing.toml", {})
    with pytest.raises(ConfigError, match=f"is a folder; .* such as {tmp_path}/run.toml"):
        load_settings(tmp_path, {})
    (tmp_path / "latin.toml").write_bytes(b"# \xe9\n")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_settings(tmp_path / "latin.toml", {})


def test_the_environment_overrides(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    environment = {
        "TEMPER_BUS__BOOTSTRAP_SERVERS": "host:9092",
        "TEMPER_SCHEDULER__MAX_LAG": "3",
        "TEMPER_HOME": "x",
    }
    settings = load_settings(path, environment)
    assert (settings.bus.bootstrap_servers, settings.scheduler.max_lag) == ("host:9092", 3)
    with pytest.raises(ConfigError, match=r"no section 'buss'; did you mean 'bus'\?"):
        load_settings(path, {"TEMPER_BUSS__X": "1"})
    with pytest.raises(ConfigError, match="unknown key 'bus.namespce'; did you mean 'namespace'"):
        load_settings(path, {"TEMPER_BUS__NAMESPCE": "x"})
    with pytest.raises(ConfigError, match=r"\[\[stages\]\] is a list"):
        load_settings(path, {"TEMPER_STAGES__STEPS": "1"})
