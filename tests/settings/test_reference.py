"""`temper settings` shows every key there is, as the models have it."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from shared.errors import ConfigError
from shared.settings import Settings
from temper.__main__ import app
from temper.reference.keys import Key, keys

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.toml"))
FREE = {
    "objectives",
    "stages.objective.overrides",
    "domains.difficulty",
    "domains.episode",
    "stages.objective",
}
"""Tables whose keys are those of an objective, of a domain's difficulty, or a shorter way to write one."""


def found() -> dict[str, Key]:
    return {key.path.replace("[]", ""): key for key in keys(Settings)}


def leaves(table: Any, path: str = "") -> set[str]:
    if path in FREE or not isinstance(table, dict | list):
        return {path}
    if isinstance(table, list):
        return set().union(*(leaves(one, path) for one in table)) if table else {path}
    return set().union(*(leaves(one, f"{path}.{name}".lstrip(".")) for name, one in table.items()))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: str(path.stem))
def test_every_key_of_the_examples_is_shown(example: Path) -> None:
    known = found()
    for path in leaves(tomllib.loads(example.read_text())):
        assert any(one == path or one.startswith(f"{path}.") for one in known) or path in FREE, path


def test_a_key_has_its_bounds_default_and_meaning() -> None:
    known = found()
    assert known["bus.drain_s"] == Key(
        "bus.drain_s", "number > 0", "20.0",
        "How long running handlers may go on when partitions are revoked or the service stops.",
    )  # fmt: skip
    assert known["stages.kind"].kind == "sft, preference, rl" and known["stages.kind"].default == ""
    assert known["stages.kind"].path == "stages[].kind"
    assert known["bus.retry_delays_s"].kind == "list of number"
    assert "domains.episode.agent.command" in known and "guard.bounds.limit" in known


def test_the_command_shows_one_section_or_says_which_there_are() -> None:
    shown = CliRunner().invoke(app, ["settings", "storage", "--json"])
    assert [row["path"] for row in json.loads(shown.stdout)] == [
        "storage.uri", "storage.cache_bytes", "storage.patience_s",
    ]  # fmt: skip
    assert "claim_check_bytes" in CliRunner().invoke(app, ["settings"]).stdout
    wrong = CliRunner().invoke(app, ["settings", "rolout"])
    assert isinstance(wrong.exception, ConfigError) and "did you mean 'rollout'?" in str(wrong.exception)
