"""Everything that may go wrong in an attempt has its end: through the runner, under terms from settings, with real
commands in a real sandbox. Only the engine is scripted."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from services.rollout.formats.calls import Call
from services.rollout.turns.episode import End
from services.rollout.turns.places import Places
from services.rollout.turns.runner import Runner
from services.rollout.turns.terms import with_terms
from services.rollout.turns.tokens import Tokens
from shared.contracts import Limits, Task
from shared.episode_settings import EpisodeSettings
from tests.rollout.turns import templates
from tests.rollout.turns.scripted import ScriptedEngine, check_exact, says, tokens_of
from tests.rollout.turns.test_runner import slot_of, task_of, written
from tests.sandbox.machines import MODES, settings_of

TERMS: dict[str, Any] = {"commands": {"wall_s": 1.0}, "output": {"head": 60, "tail": 120}}


def bash(tokens: Tokens, task: Task, *commands: str) -> str:
    return written(tokens, task, *(Call("bash", {"command": command}) for command in commands))


Ended = Callable[[Tokens, Task, list[str], dict[str, Any]], End]


@pytest.fixture(scope="module")
def ended() -> Iterator[Ended]:
    """The attempt of a policy that says `turns`, the last one for ever; one sandbox for all of them."""
    with asyncio.Runner() as loop:
        places = Places(settings_of(MODES[0]), 2)

        def run(tokens: Tokens, task: Task, turns: list[str], terms: dict[str, Any]) -> End:
            engine = ScriptedEngine(says(tokens, turns))
            runner = with_terms(Runner(engine, tokens, places), EpisodeSettings.model_validate(terms))
            end = loop.run(runner.attempt(task, slot_of(), 1))
            check_exact(end, engine)
            return end

        yield run
        assert places.lent == 0
        loop.run(places.close())


@pytest.fixture
def tokens(tiny_tokenizer: Any) -> Tokens:
    return tokens_of(tiny_tokenizer, templates.QWEN_LIKE)


def test_a_command_that_hangs_is_told_of_and_the_policy_goes_on(tokens: Tokens, ended: Ended) -> None:
    task = task_of(tools=("bash",))
    hangs = bash(tokens, task, "echo before > left.txt; sleep 100; echo after >> left.txt")
    end = ended(tokens, task, [hangs, bash(tokens, task, "cat left.txt"), "done"], TERMS)
    assert end.stop_reason == "stop"
    assert [call.result for call in end.tool_calls] == ["[ended: over 1 s of wall time]", "before"]
    assert end.artifacts["workspace/left.txt"] == "before\n"


def test_a_command_left_behind_does_not_outlive_its_turn(tokens: Tokens, ended: Ended) -> None:
    task = task_of(tools=("bash",))
    leaves = bash(tokens, task, "(sleep 0.5; echo late > late.txt) & true")
    waits = bash(tokens, task, "sleep 0.9; ls")
    end = ended(tokens, task, [leaves, waits, "done"], TERMS)
    assert end.tool_calls[1].result == "a.txt"
    assert "workspace/late.txt" not in end.artifacts


def test_a_flood_is_cut_and_costs_the_context_little(tokens: Tokens, ended: Ended) -> None:
    task = task_of(tools=("bash",))
    end = ended(tokens, task, [bash(tokens, task, "yes"), bash(tokens, task, "seq 100000"), "done"], TERMS)
    assert end.stop_reason == "stop"
    for call in end.tool_calls:
        assert "characters cut here" in call.result
        assert len(call.result) < 300
    assert end.tool_calls[1].result.startswith("1\n2\n")
    assert sum(len(sequence.token_ids) for sequence in end.sequences) < 2000


@pytest.mark.parametrize(
    ("limits", "reason", "turns"),
    [
        ({"turns": 5}, "turns", 5),
        ({"turns": 10_000, "tool_calls": 4}, "calls", 5),
        ({"turns": 10_000, "sampled_tokens": 300}, "tokens", None),
        ({"turns": 10_000, "wall_seconds": 2.0}, "deadline", None),
    ],
)
def test_a_policy_that_never_stops_is_stopped(
    tokens: Tokens, limits: dict[str, Any], reason: str, turns: int | None, ended: Ended
) -> None:
    task = task_of(
        tools=("bash",), limits=Limits(**{"context_tokens": 1 << 20, "wall_seconds": 60.0, **limits})
    )
    end = ended(tokens, task, [bash(tokens, task, "echo more >> log.txt")], TERMS)
    assert end.stop_reason == reason
    assert turns is None or end.turns == turns
    assert end.artifacts["workspace/log.txt"].startswith("more\n")


@pytest.mark.parametrize("policy", ["none", "window", "compress", "retrieve"])
def test_a_context_that_overflows(tokens: Tokens, policy: str, ended: Ended) -> None:
    limits = Limits(turns=12, context_tokens=2200, wall_seconds=60.0)
    task = task_of(tools=("bash",), limits=limits)
    terms = {
        **TERMS,
        "output": {"head": 200, "tail": 200},
        "context": {"policy": policy, "summary_tokens": 60},
    }
    turns = [bash(tokens, task, f"seq {number} 9999") for number in range(11)]
    end = ended(tokens, task, [*turns, "done"], terms)
    if policy == "none":
        assert end.stop_reason == "context"
        assert end.turns < 12
    else:
        assert end.turns == 12
        assert len(end.sequences) > 1
    assert all(len(sequence.token_ids) <= 2200 for sequence in end.sequences)


def test_malformed_calls_are_answered_and_counted(tokens: Tokens, ended: Ended) -> None:
    task = task_of(tools=("bash",))
    turns = [
        '<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}\n</tool_call>',
        '<tool_call>\n{"name": "bahs", "arguments": {"command": "ls"}}\n</tool_call>',
        '<tool_call>\n{"name": "bash", "arguments": {"cmd": "ls"}}\n</tool_call>',
        bash(tokens, task, "ls"),
        "done",
    ]
    end = ended(tokens, task, turns, TERMS)
    assert (end.stop_reason, end.malformed_calls) == ("stop", 1)
    assert [call.error for call in end.tool_calls[:2]] == [
        "there is no tool 'bahs'; did you mean 'bash'?; there are: bash",
        "bash: argument 'command' is missing; unknown argument 'cmd'; did you mean 'command'?",
    ]
    assert end.tool_calls[2].result == "a.txt"
    assert "it is not JSON" in tokens.raw(end.sequences[-1].token_ids)


@pytest.mark.parametrize("name", ["tiny", "strict"])
def test_a_template_that_knows_no_tools_is_worked_with_in_plain_blocks(
    tiny_tokenizer: Any, name: str, ended: Ended
) -> None:
    plain = tokens_of(tiny_tokenizer, templates.ALL[name])
    task = task_of(tools=("bash",))
    end = ended(plain, task, ["```bash\necho mended > a.txt; cat a.txt\n```", "done"], TERMS)
    assert end.tool_calls[0].result == "mended"
    assert end.artifacts == {"workspace/a.txt": "mended\n"}
    seen = plain.raw(end.sequences[0].token_ids)
    assert "Runs a shell command" in seen
    assert "mended" in seen.partition("cat a.txt")[2]


def test_named_commands_and_no_shell_by_the_settings(tokens: Tokens, ended: Ended) -> None:
    task = task_of(tools=("bash",))
    terms = {**TERMS, "permissions": {"commands": ["cat"]}}
    turns = [bash(tokens, task, "cat a.txt", "rm a.txt", "cat a.txt | sh"), "done"]
    end = ended(tokens, task, turns, terms)
    assert end.tool_calls[0].result == "broken"
    assert end.tool_calls[1].error == "program 'rm' is not allowed here; allowed: cat"
    assert "exit code 1" in end.tool_calls[2].result


def test_what_is_left_is_told_with_links_and_modes(tokens: Tokens, ended: Ended) -> None:
    task = task_of(tools=("bash",))
    end = ended(tokens, task, [bash(tokens, task, "ln -s a.txt b; chmod 600 a.txt; mkdir c"), "done"], TERMS)
    assert json.loads(end.artifacts["workspace"]) == {
        "folders": ["c"],
        "links": {"b": "a.txt"},
        "modes": {"a.txt": "600"},
    }
