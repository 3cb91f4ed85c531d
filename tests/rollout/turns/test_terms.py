"""From settings to the terms of attempts, and to the limits in tasks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from services.rollout.context.compress import Compress
from services.rollout.context.retrieve import Retrieve
from services.rollout.context.window import Window
from services.rollout.turns.runner import Runner
from services.rollout.turns.terms import context_of, largest_limits, with_terms
from services.scheduler.tasks import TaskBuilder
from services.scheduler.training import GroupPlan
from shared.domains.registry import load_domain
from shared.episode_settings import ContextSettings
from shared.errors import ConfigError
from shared.settings import Settings
from temper.up.resolved import resolve, to_toml
from tests.rollout.turns.scripted import ScriptedEngine, says, tokens_of

Make = Callable[..., Settings]
WORKLOAD = {"turns": 6, "context_tokens": 900, "output": {"head": 50}, "permissions": {"network": True}}
OWN = {"context_tokens": 700, "tools": ["read_file"], "output": {"tail": 70}, "commands": {"disk_mb": 128}}


def agentic(make_settings: Make, own: dict[str, Any], workload: dict[str, Any] | None = None) -> Settings:
    return make_settings(
        workloads=[{"name": "single_turn"}, {"name": "agentic", "episode": workload or WORKLOAD}],
        domains=[
            {"name": "arithmetic"},
            {"name": "sequences", "workload": "agentic", "episode": own},
        ],
    )


def test_a_domain_changes_single_keys_of_its_workload_down_to_the_leaves(make_settings: Make) -> None:
    episode = agentic(make_settings, OWN).episode_of("sequences")
    assert (episode.turns, episode.context_tokens, episode.tools) == (6, 700, ("read_file",))
    assert (episode.output.head, episode.output.tail) == (50, 70)
    assert episode.permissions.network
    assert episode.commands.disk_mb == 128


def test_a_resolved_run_has_the_same_episodes(make_settings: Make) -> None:
    import tomllib

    settings = agentic(make_settings, OWN)
    again = Settings.model_validate(tomllib.loads(to_toml(resolve(settings))))
    for name in ("arithmetic", "sequences"):
        assert again.episode_of(name).model_dump() == settings.episode_of(name).model_dump()


def test_the_runner_of_a_domain_has_its_terms(make_settings: Make, tiny_tokenizer: Any) -> None:
    tokens = tokens_of(tiny_tokenizer)
    own = {**OWN, "call_format": "hermes", "tool_seconds": 3, "context": {"policy": "compress", "newest": 4}}
    settings = agentic(make_settings, own)
    plain = Runner(ScriptedEngine(says(tokens, ["x"])), tokens)
    made = with_terms(plain, settings.episode_of("sequences"))
    assert (made.output.head, made.output.tail) == (50, 70)
    assert (made.permissions.network, made.permissions.everywhere) == (True, True)
    assert (made.format, made.domain_tools.timeout_s, made.context) == ("hermes", 3.0, Compress(512, 4))
    assert with_terms(plain, settings.episode_of("arithmetic")) == plain
    assert (made.limits.disk_mb, largest_limits(settings).disk_mb) == (128, 128)
    assert context_of(ContextSettings(policy="window")) == Window()
    assert context_of(ContextSettings(policy="retrieve", word_tokens=50)) == Retrieve(50)


def test_tasks_carry_the_limits_and_tools(make_settings: Make) -> None:
    settings = agentic(make_settings, {**OWN, "wall_seconds": 20, "tool_calls": 9, "sampled_tokens": 400})
    builder = TaskBuilder(settings, {name: load_domain(name) for name in ("arithmetic", "sequences")})
    task = builder.training(GroupPlan("0-rl-0", 0, 0, "sequences", 7), 0, 1)
    assert task.tools == ("read_file",)
    limits = task.limits
    assert (limits.turns, limits.context_tokens, limits.wall_seconds) == (6, 700, 20.0)
    assert (limits.tool_calls, limits.sampled_tokens) == (9, 400)
    plain = builder.training(GroupPlan("0-rl-1", 0, 1, "arithmetic", 7), 0, 1)
    assert (plain.tools, plain.limits.turns) == ((), 1)


def test_with_tools_and_no_word_on_turns_there_are_some(make_settings: Make) -> None:
    settings = agentic(make_settings, {"tools": ["bash"]}, {"context_tokens": 900})
    assert settings.episode_of("sequences").turns_of(("bash",)) == 16
    assert settings.episode_of("arithmetic").turns_of(()) == 1


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ({"turn": 3}, "unknown key 'domains.1.episode.turn'; did you mean 'turns'"),
        ({"context": {"policy": "windows"}}, "did you mean 'window'"),
        ({"call_format": "hermees"}, "did you mean 'hermes'"),
        ({"output": {"head": 0, "tail": 0}}, "reads no results needs no tools"),
        ({"permissions": {"read": ["../x"]}}, "leaves the work folder"),
        ({"tools": ["bash"], "permissions": {"write": ["out"]}}, "sees the whole work folder"),
        ({"wall_seconds": 1e6}, "lower its wall_seconds or raise scheduler.group_deadline_s"),
    ],
)
def test_what_cannot_be_is_refused_before_any_work(
    make_settings: Make, own: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        agentic(make_settings, own)


def test_a_shell_of_the_domain_cannot_keep_roots_of_the_workload(make_settings: Make) -> None:
    with pytest.raises(ConfigError, match="sees the whole work folder"):
        agentic(make_settings, {"tools": ["bash"]}, {"permissions": {"read": ["src"]}})


def test_a_tool_that_nobody_has_is_refused_by_the_scheduler(make_settings: Make) -> None:
    settings = agentic(make_settings, {"tools": ["bahs"]})
    with pytest.raises(
        ConfigError, match=r"'sequences' gives tool 'bahs', which nobody has; did you mean 'bash'"
    ):
        TaskBuilder(settings, {name: load_domain(name) for name in ("arithmetic", "sequences")})
