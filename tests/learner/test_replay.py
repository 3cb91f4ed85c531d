"""`temper replay`: the recorded batches once more give the recorded steps to the bit, or show what another loss does."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from learner_builders import demonstration, sequence, trajectory
from learner_models import VOCABULARY, small_policy
from learner_world import World, steps, with_learner
from typer.testing import CliRunner, Result

from services.learner.objectives.presets import preset
from services.learner.replay.batches import recorded_batch
from shared.contracts import GroupFate, Step
from shared.errors import ConfigError, DataError, StorageError
from shared.settings import Settings, load_settings
from temper.__main__ import app
from temper.up.resolved import resolve, to_toml
from tests.brokers import Broker, settings_for

KL = {"preset": "grpo", "overrides": {"kl_coefficient": 0.1, "kl_target": 0.01, "kl_horizon": 100}}
LEARNER = {"micro_batch_tokens": 16, "keep_checkpoints": 4, "threads": 1}
STAGES = [
    {"kind": "sft", "steps": 2, "groups_per_step": 2, "learning_rate": 1e-2},
    {"kind": "rl", "steps": 3, "groups_per_step": 2, "group_size": 2, "learning_rate": 1e-2, "objective": KL},
]


async def learn(world: World, timeout_s: float = 20.0) -> None:
    """Two stages, with an attempt that comes twice, a group without signal in a batch, and one that is stale."""
    for index in range(4):
        await world.attempt(demonstration(f"0-sft-{index:07d}"))
    await world.until(lambda seen: 2 in steps(seen), "the sft stage", timeout_s)
    for index in range(7):
        for sample in range(2):
            tokens = [(3 * index + 5 * sample + n) % VOCABULARY for n in range(4 + sample)]
            version = 0 if index == 3 else 2
            made = trajectory(
                f"1-rl-{index:07d}",
                sample,
                stage_index=1,
                version=version,
                sequences=(sequence([3, 1, 4], tokens, [-3.0] * len(tokens), version=version),),
            )
            await world.attempt(made, 1.0 if index == 1 else float(sample))
            if index == 2:
                again = made.model_copy(update={"trajectory_id": f"{made.trajectory_id}-again", "attempt": 2})
                await world.attempt(again, 1.0)
    await world.until(lambda seen: 5 in steps(seen), "the rl stage", timeout_s)


def settings_of(broker: Broker, place: Path, **learner: Any) -> Settings:
    """Of a run in `place`, as `temper up` would have written them down."""
    small_policy().model.save_pretrained(str(place / "model"))
    settings = settings_for(
        broker,
        place,
        stages=STAGES,
        scheduler={"max_lag": 2},
        learner={**LEARNER, **learner},
        model={"path": str(place / "model")},
    )
    settings.run_folder.mkdir(parents=True, exist_ok=True)
    (settings.run_folder / "run.toml").write_text(to_toml(resolve(settings)))
    return settings


@pytest.fixture(scope="module")
def run(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that has learnt, and whose broker answers."""
    place = tmp_path_factory.mktemp("recorded")
    settings = settings_of(broker, place)
    asyncio.run(with_learner(settings, learn))
    return settings.run_folder


def replay(run: Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["replay", str(run), *arguments])


def told(result: Result, code: int = 0) -> Any:
    assert result.exit_code == code, (result.output, result.exception)
    return json.loads(result.stdout)


def last_weights(folder: Path, run_id: str, step: int = 5) -> str:
    place = folder / "objects" / "checkpoints" / run_id / f"{step:08d}" / "manifest.json"
    return str(json.loads(place.read_text())["files"]["weights.safetensors"]["sha256"])


def test_the_same_objective_gives_the_same_bits(run: Path) -> None:
    """Over the end of a stage, and from the middle of one."""
    objects = Path(load_settings(run / "run.toml").storage_uri.removeprefix("file://")).parent
    for first in (2, 4):
        document = told(replay(run, "--from", str(first), "--json"))
        assert document["same"] and [one["step"] for one in document["steps"]] == list(range(first + 1, 6))
        folder = run.parent / f"{run.name}-replay-{first}"
        assert last_weights(folder, folder.name) == last_weights(objects, run.name)
        assert json.loads((folder / "replay.json").read_text())["of"] == run.name
        assert json.loads((folder / "summary.json").read_text())["steps"] == 5 - first
        assert len((folder / "steps.jsonl").read_text().splitlines()) == 5 - first
        listed = CliRunner().invoke(app, ["checkpoint", "list", str(folder), "--json"])
        assert json.loads(listed.stdout)[-1]["step"] == 5
        audited = CliRunner().invoke(app, ["audit", str(folder)])
        assert isinstance(audited.exception, ConfigError) and "is a replay" in str(audited.exception)
    shown = replay(run, "--from", "2", "--steps", "1", "--into", "one").stdout
    assert "1 step came out to the last bit" in shown
    reported = CliRunner().invoke(app, ["report", str(run.parent / "one")])
    assert reported.exit_code == 0, reported.exception
    assert "one: nothing was evaluated" in reported.stdout and "sft" not in reported.stdout
    assert "recorded → replayed" in reported.stdout and "1 step came out" in reported.stdout
    (run.parent / "one" / "replay.json").write_text("{}")
    damaged = CliRunner().invoke(app, ["report", str(run.parent / "one")])
    assert isinstance(damaged.exception, DataError) and "replay.json is damaged" in str(damaged.exception)


def test_another_objective_sees_the_same_data(run: Path) -> None:
    result = replay(
        run, "--from", "2", "--objective", "dapo", "--set", "clip_high=0.4", "--json", "--into", "other"
    )
    document = told(result)
    assert not document["same"] and len(document["steps"]) == 3
    for step in document["steps"]:
        assert step["recorded"]["reward"] == step["replayed"]["reward"] and "slots" not in step["differs"]
    assert "weights" in document["steps"][-1]["differs"]
    table = replay(run, "--from", "4", "--set", "kl_coefficient=0.5", "--into", "stronger")
    assert table.exit_code == 0 and "under another objective" in table.stdout and "→" in table.stdout


def test_a_file_of_an_objective(run: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('preset = "dr_grpo"\nclip_high = 0.3\n')
    document = told(replay(run, "--from", "3", "--objective", str(file), "--json", "--into", "mine"))
    assert not document["same"]
    settings = load_settings(run.parent / "mine" / "run.toml")
    assert settings.stages[1].objective.preset == "replayed" and settings.stages[0].objective.preset == "grpo"


def test_what_is_not_the_same_ends_with_one(run: Path) -> None:
    """Whatever the cause: here the configuration was tampered with."""
    other = run.parent / "tampered" / run.name
    other.mkdir(parents=True)
    (other / "objects").symlink_to(run / "objects")
    text = (run / "run.toml").read_text()
    (other / "run.toml").write_text(text.replace("learning_rate = 0.01", "learning_rate = 0.02"))
    result = replay(other, "--from", "3")
    assert result.exit_code == 1, (result.output, result.exception)
    assert "step 4 is the first that differs" in result.stdout


def test_what_cannot_be_replayed_is_said(run: Path) -> None:
    def error(*arguments: str) -> Exception:
        result = replay(run, *arguments)
        assert result.exit_code and isinstance(result.exception, ConfigError | StorageError), result.output
        return result.exception

    assert "kept are the steps 2, 3, 4, 5" in str(error("--from", "0"))
    assert "has recorded no step after 5" in str(error("--from", "5"))
    (run.parent / "taken").mkdir()
    (run.parent / "taken" / "file").touch()
    assert "is there already" in str(error("--from", "4", "--into", "taken"))
    assert "is a path: give a name" in str(error("--from", "4", "--into", "../x"))
    assert "write key=value" in str(error("--from", "4", "--set", "clip_high", "--into", "x"))
    assert "does not exist" in str(error("--from", "4", "--objective", "grp", "--into", "x"))
    assert "does not fit a stage of kind 'rl'" in str(
        error("--from", "4", "--objective", "dpo", "--into", "x")
    )
    assert "--objective no.toml: no such file; give a preset, or a TOML file" in str(
        error("--from", "4", "--objective", "no.toml", "--into", "x")
    )
    assert not (run.parent / "x").exists()


def group(name: str, *fates: Any) -> GroupFate:
    return GroupFate(
        group_id=name, samples=tuple(range(len(fates))), fates=fates,
        trajectory_ids=tuple(f"{name}/{index}" for index in range(len(fates))),
    )  # fmt: skip


def test_who_took_part_in_a_batch() -> None:
    step = Step(
        run_id="run", step=1, stage="rl", stage_index=0, stage_step=1, policy_version=1,
        groups=(
            group("late", "expired", "expired"),
            group("alone", "zero_signal", "stale"),
            group("even", "zero_signal", "zero_signal"),
            group("bad", "invalid", "invalid"),
            group("good", "trained", "stale"),
            group("held", "skipped", "skipped"),
        ),
    )  # fmt: skip
    assert [one.group_id for one in recorded_batch(step, preset("grpo"))] == ["even", "good", "held"]
    assert [one.group_id for one in recorded_batch(step, preset("dapo"))] == ["good", "held"]
    assert recorded_batch(step, preset("grpo"))[1].attempts == {0: "good/0", 1: "good/1"}
