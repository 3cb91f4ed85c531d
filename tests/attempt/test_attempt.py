"""`temper attempt`: the run's own episode code, live, and its verdict."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from services.rollout.chat import ChatCodec
from services.rollout.formats.calls import Call
from services.rollout.formats.fenced import Fenced
from services.rollout.turns.tokens import Tokens
from shared.contracts import ToolCall, Trajectory
from shared.episode_settings import TURNS_WITH_TOOLS
from shared.errors import ConfigError, StorageError
from shared.settings import DomainSettings, RolloutSettings
from temper.__main__ import app
from temper.attempt import episode, show
from temper.attempt.serving import serving, settings_for
from temper.policies import FolderPolicy, RunPolicy, find_policy
from tests.attempt.test_policies import made_run
from tests.rollout.turns.scripted import ScriptedEngine, check_exact

EASY = ["--domain", "arithmetic", "--difficulty", '{"digits": 1, "operations": ["+"]}']
PLACE = "tests.attempt.counting:Counting"


def run(*words: str) -> Any:
    return CliRunner().invoke(app, ["attempt", *words])


def test_an_attempt_is_shown_as_it_was_sampled(tiny_folder: Path) -> None:
    words = ["--policy", str(tiny_folder), *EASY, "--seed", "5", "--temperature", "1", "--max-tokens", "12"]
    shown = run(*words)
    assert shown.exit_code == 1, shown.output
    made = run(*words, "--json")
    assert made.exit_code == 1
    found = json.loads(made.output)
    trajectory = Trajectory.model_validate(found["attempts"][0]["trajectory"])
    assert (found["passed"], found["judged"], found["samples"]) == (0, 1, 1)
    assert trajectory.sampled_tokens() == 12
    codec = ChatCodec.open(str(tiny_folder))
    ids = trajectory.sequences[0].token_ids[-12:]
    said = show.barred(codec.tokenizer.decode(ids.tolist()))
    assert (
        f"after {len(trajectory.sequences[0].token_ids) - 12} tokens]\n{said}\n[12 tokens, length"
        in shown.output
    )
    assert "failed, reward 0: cut off at its token limit" in shown.output


def test_several_samples_give_a_pass_rate(tiny_folder: Path) -> None:
    """The engine answers with a digit that follows from the seed: of one in ten sums some are right."""
    shown = run("--policy", str(tiny_folder), *EASY, "--seed", "1", "--samples", "40", "--engine", "instant")
    passed = sum(" passed " in line for line in shown.output.splitlines())
    assert 0 < passed < 40
    assert f"passed {passed} of 40: {passed / 40:.0%} (95 %: " in shown.output
    assert shown.exit_code == 1


def test_a_domain_that_is_none_of_the_settings_is_attempted(tiny_folder: Path) -> None:
    words = ["--policy", str(tiny_folder), "--domain", "sequences", "--engine", "instant", "--json"]
    result = run(*words)
    assert result.exit_code == 1, result.output
    assert json.loads(result.output)["task"]["sampling"]["max_tokens"] == 512


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--domain", "arithmetik"], "did you mean 'arithmetic'"),
        (["--domain", "arithmetic", "--difficulty", "[]"], "give a JSON object"),
        (["--domain", "arithmetic", "--difficulty", '{"digit": 1}'], "did you mean 'digits'"),
    ],
)
def test_what_cannot_be_attempted_is_refused_in_a_line(tiny_folder: Path, words: list[str], why: str) -> None:
    result = run("--policy", str(tiny_folder), *words)
    assert isinstance(result.exception, ConfigError)
    assert why in str(result.exception)


@pytest.mark.parametrize("turns", ["1", "3"])
def test_a_context_below_the_prompt_is_the_reason(tiny_folder: Path, turns: str) -> None:
    words = ["--policy", str(tiny_folder), *EASY, "--engine", "instant", "--turns", turns, "--context", "5"]
    shown = run(*words)
    assert shown.exit_code == 1, shown.output
    assert "failed, reward 0: the prompt's " in shown.output
    assert "leave no room in a context of 5: raise the episode's context_tokens" in shown.output
    assert "cut off" not in shown.output


def test_the_engines_to_choose_from_are_those_of_the_settings() -> None:
    known = get_args(RolloutSettings.model_fields["engine"].annotation)
    for command in ("attempt", "chat"):
        shown = CliRunner().invoke(app, [command, "--help"]).output
        assert f"--engine <{'|'.join(known)}>" in shown


def test_a_checkpoint_of_a_run_is_what_is_served(tiny_folder: Path, tmp_path: Path) -> None:
    """Its weights and no others: they double the model's, and the engine scores as the doubled model does."""
    doubled = {name: tensor * 2 for name, tensor in load_file(str(tiny_folder / "model.safetensors")).items()}
    save_file(doubled, str(tmp_path / "doubled.safetensors"))
    folder = made_run(tmp_path, {7: (tmp_path / "doubled.safetensors").read_bytes()})
    found = find_policy(f"{folder}@7")
    assert isinstance(found, RunPolicy)
    ids, lengths = np.arange(3, 13, dtype=np.int32), np.array([10], dtype=np.int32)

    async def scores(policy: RunPolicy | FolderPolicy) -> Any:
        settings = settings_for(policy, {"model": {"path": str(tiny_folder)}})
        async with serving(settings, policy) as served:
            return await served.engine.score(ids, lengths), served.engine.capacity().version

    (of_run, version), (of_folder, _) = (
        asyncio.run(scores(policy)) for policy in (found, FolderPolicy(tiny_folder))
    )
    assert version == 7
    assert np.abs(of_run - of_folder).max() > 0.01
    (folder / "objects/checkpoints/demo/00000007/weights.safetensors").write_bytes(b"other")
    with pytest.raises(StorageError, match="hashes to"):
        asyncio.run(scores(found))


def test_a_model_in_several_files_of_another_dtype_is_served(tiny_folder: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(str(tiny_folder), dtype="float32")
    model.half().save_pretrained(str(tmp_path / "m"), max_shard_size="200KB")
    AutoTokenizer.from_pretrained(str(tiny_folder)).save_pretrained(str(tmp_path / "m"))
    assert len(list((tmp_path / "m").glob("*.safetensors"))) > 1
    result = run("--policy", str(tmp_path / "m"), *EASY, "--max-tokens", "3", "--json")
    assert result.exit_code == 1, result.output
    assert json.loads(result.output)["attempts"][0]["trajectory"]["sequences"]


def test_a_configuration_gives_everything_but_the_policy(tiny_folder: Path, tmp_path: Path) -> None:
    config = tmp_path / "run.toml"
    config.write_text(
        '[run]\nname = "r"\n[model]\npath = "models/none"\n[[stages]]\nkind = "rl"\nsteps = 1\n'
        '[[domains]]\nname = "arithmetic"\nmax_tokens = 3\ndifficulty = { digits = 4 }\n'
        "[domains.episode]\ncontext_tokens = 777\n"
    )
    words = ["--policy", str(tiny_folder), "--domain", "arithmetic", "--json", "--config", str(config)]
    task = json.loads(run(*words).output)["task"]
    assert task["domain"]["difficulty"]["digits"] == 4
    assert (task["sampling"]["max_tokens"], task["limits"]["context_tokens"]) == (3, 777)
    assert task["limits"]["turns"] == 1


def test_an_agent_that_never_asked_is_a_fault_and_no_failure(tiny_folder: Path, tmp_path: Path) -> None:
    config = tmp_path / "run.toml"
    config.write_text(
        '[run]\nname = "r"\n[model]\npath = "models/none"\n[[stages]]\nkind = "rl"\nsteps = 1\n'
        '[[domains]]\nname = "arithmetic"\n[domains.episode.agent]\ncommand = ["sh", "-c", "echo no >&2; exit 9"]\n'
    )
    words = ["--policy", str(tiny_folder), "--domain", "arithmetic", "--config", str(config)]
    result = run(*words, "--engine", "instant")
    assert result.exit_code == 3
    assert "got no answer of the policy (exit code 9); it said: no" in result.stderr


def test_tools_and_their_results_are_told_as_they_happen(
    tiny_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The policy is scripted, everything else is real: sandbox, tools, turns, verifier."""
    settings = settings_for(FolderPolicy(tiny_folder), {})
    declared = DomainSettings(name=PLACE, max_tokens=200, workload="single_turn")
    settings = settings.model_copy(update={"domains": (declared,)})
    task = episode.task_of(settings, episode.Wanted(PLACE, 3))
    assert task.limits.turns == TURNS_WITH_TOOLS
    lines = task.files["a.txt"].count("x")
    codec = ChatCodec.open(str(tiny_folder))
    tokens = Tokens(codec.tokenizer, codec.stop_ids)
    form = Fenced()
    turns = [
        form.render([Call("bash", {"command": "wc -l < a.txt; printf '\\033[2J'"})], "I count."),
        form.render([Call("submit", {"answer": str(lines)})]),
    ]
    end = np.array([tokens.end_id], dtype=np.int32)
    table = [np.concatenate([tokens.encode(turn)[0], end]) for turn in turns]
    engine = ScriptedEngine(lambda number, request: table[number])
    told: list[ToolCall] = []
    live = show.Live(lambda ids: str(codec.tokenizer.decode(ids)))
    watching = live.watching()

    def tell(call: ToolCall) -> None:
        told.append(call)
        watching.told(call)

    watched = episode.Watching(watching.asked, watching.heard, watching.said, tell)
    (trajectory,) = asyncio.run(episode.attempt(settings, task, engine, codec, watched))
    (reward,) = asyncio.run(episode.verify(settings, PLACE, [trajectory]))
    out = capsys.readouterr().out
    assert [call.name for call in told] == ["bash", "submit"]
    assert f"│ {lines}\n" in out
    assert "\\x1b[2J" in out
    assert "\x1b" not in out
    assert "│ I count.\n" in out
    assert "[turn 2: the policy" in out
    assert (reward.verdict, trajectory.final_answer) == ("passed", str(lines))
    check_exact(_as_end(trajectory), engine)
    assert show.verdict(trajectory, reward).startswith("passed, reward 1\nended by stop, ")


def _as_end(trajectory: Trajectory) -> Any:
    """Has the sequences, which is all that is looked at."""
    return trajectory
