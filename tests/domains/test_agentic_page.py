"""What docs/agentic.md shows is read as it says, and every key that there is stands in it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from shared.domains.base import Attempt, CheckRequest, Domain
from shared.domains.code_repair.kinds import KINDS as BUGS
from shared.domains.code_repair.kinds import ROUTINES
from shared.domains.registry import load_domain
from shared.domains.terminal.kinds import KINDS as JOBS
from shared.domains.workspace import REST, Rest, files_of, incomplete, tree_of
from shared.episode_settings import EpisodeSettings
from shared.settings import load_settings, parse_settings

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "agentic.md").read_text()


def test_the_run_that_is_shown_has_the_episodes_that_it_says() -> None:
    (shown,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    rest = {"run": {"name": "r"}, "model": {"path": "m"}, "stages": [{"kind": "rl", "steps": 1}]}
    episode = parse_settings({**tomllib.loads(shown), **rest}).episode_of("code_repair")
    assert (episode.turns, episode.context_tokens, episode.call_format) == (20, 4096, "hermes")
    assert (episode.commands.wall_s, episode.commands.memory_mb) == (30.0, 512)
    assert episode.context.policy == "compress"


def test_the_domain_that_is_shown_is_admitted(tmp_path: Path) -> None:
    (shown,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "renaming.py").write_text(shown)
    done = subprocess.run(
        [sys.executable, "-P", "-m", "temper", "domains", "admit", "renaming:Renaming", "--seeds", "2"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "renaming version 1: admitted" in done.stdout


def test_every_key_and_number_of_the_page() -> None:
    for key in EpisodeSettings.model_fields:
        assert f"`{key}" in PAGE, key
    assert f"of {len(JOBS)} kinds" in PAGE
    assert f"one of {len(BUGS)} bugs in {len(ROUTINES)} functions" in PAGE
    for name in ("terminal", "code_repair"):
        for key in load_domain(name).difficulty_model.model_fields:
            assert f"`{key}`" in PAGE.partition("## The two that are there")[2]


@pytest.mark.parametrize("name", sorted(path.name for path in (ROOT / "examples").glob("*.toml")))
def test_every_example_is_a_run(name: str) -> None:
    settings = load_settings(ROOT / "examples" / name, {})
    for declared in settings.domains:
        domain: Domain = load_domain(declared.name)
        instance = domain.instance(0, declared.difficulty)
        assert settings.episode_of(declared.name).turns_of(tuple(instance.tools)) >= 1 + bool(instance.tools)


def test_a_tree_is_what_was_given_and_what_became_of_it() -> None:
    given = {"a": "1", "b": "2", "c": "3"}
    rest = Rest(deleted=["a"], links={"l": "b"}, modes={"b": "600"}, left_out=2)
    artifacts = {"workspace/c": "4", "workspace/d/e": "5", REST: rest.text()}
    assert files_of(given, artifacts) == {"b": "2", "c": "4", "d/e": "5"}
    assert [(entry["path"], entry.get("mode")) for entry in tree_of(given, artifacts)] == [
        ("b", "600"),
        ("c", "644"),
        ("d/e", "644"),
        ("l", None),
    ]
    assert incomplete(artifacts).startswith("2 names")
    assert not incomplete({})
    assert tree_of(given, {}) == [{"path": p, "text": t, "mode": "644"} for p, t in given.items()]
    assert incomplete({REST: Rest(unread="too many names").text()}).endswith("too many names")
    with pytest.raises(ValueError, match="none of ours"):
        Rest.read('{"passed": true}')


def test_a_file_of_a_policy_that_is_called_like_our_own_artifact_is_a_file() -> None:
    """It travels as `workspace/workspace`, and says nothing about the rest."""
    assert files_of({}, {"workspace/workspace": '{"deleted": ["a"]}'}) == {"workspace": '{"deleted": ["a"]}'}
    domain = load_domain("terminal")
    instance = domain.instance(1, {"kinds": ["rename"]})
    forged = Attempt("done", {"workspace/workspace": "{}"})
    assert isinstance(domain.check(instance, forged), CheckRequest)
