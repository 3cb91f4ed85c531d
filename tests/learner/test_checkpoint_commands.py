"""`temper checkpoint`: what is listed, shown, verified and exported is what the checkpoints hold."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from learner_builders import RUN
from test_learner_resume import run_settings
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner, Result

from services.learner.model import load_policy
from services.learner.trainer import Trainer
from shared.errors import ConfigError, DataError, DependencyError, StorageError
from shared.settings import Settings
from shared.storage import ObjectStore
from temper.__main__ import app
from temper.models.tiny import make_tiny_model
from temper.up.resolved import resolve, to_toml

IDS = torch.arange(12).remainder(30).unsqueeze(0)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model") / "tiny")


def a_run(tmp_path: Path, tiny: Path, dtype: str = "float32", steps: int = 3) -> tuple[Settings, Trainer]:
    """Three checkpoints, of which two keep their weights; every one has weights of its own."""
    settings = run_settings(tmp_path, model={"path": str(tiny), "dtype": dtype}, storage={})
    settings.run_folder.mkdir(parents=True)
    (settings.run_folder / "run.toml").write_text(to_toml(resolve(settings)))
    trainer = Trainer(
        settings, ObjectStore(settings.storage_uri), load_policy(settings.model, settings.learner)
    )
    trainer.open()
    for _ in range(1, steps):
        with torch.no_grad():
            for tensor in trainer._policy.named_tensors().values():
                tensor.add_(torch.randn(tensor.shape, generator=torch.Generator().manual_seed(1)) * 0.02)
        trainer.progress = trainer.progress.adopted()
        trainer.write(trainer.take_copies(trainer.seal({})))
        trainer.prune()
    return settings, trainer


def temper(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def told(*arguments: str | Path) -> Any:
    result = temper(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def measured(settings: Settings, **rates: float) -> None:
    evaluations = [{"step": int(step[1:]), "overall": {"rate": rate}} for step, rate in rates.items()]
    (settings.run_folder / "summary.json").write_text(json.dumps({"evaluations": evaluations}))


def test_what_is_listed_and_shown(tmp_path: Path, tiny: Path) -> None:
    settings, trainer = a_run(tmp_path, tiny)
    measured(settings, s0=0.1, s1=0.75, s2=0.5)
    run = settings.run_folder
    listed = told("checkpoint", "list", run)
    assert [(row["step"], row["held"], row["pass_rate"]) for row in listed] == [
        (1, True, 0.75),
        (2, True, 0.5),
    ]
    assert [row["step"] for row in told("checkpoint", "list", run, "--all")] == [0, 1, 2]
    table = temper("checkpoint", "list", run).stdout
    assert "best" in table and "newest" in table and "1 more was pruned" in table
    shown = told("checkpoint", "show", f"{run}@best")
    assert (shown["step"], shown["run"], shown["stage"]) == (1, RUN, "sft 0/2")
    assert all(file["there"] for file in shown["files"])
    assert told("checkpoint", "show", run)["step"] == 2
    assert "weights.safetensors" in temper("checkpoint", "show", f"{run}@2").stdout
    (run / "summary.json").write_text("{")
    damaged = temper("checkpoint", "list", run).exception
    assert isinstance(damaged, DataError) and "summary.json is no summary" in str(damaged)
    measured(settings)
    trainer._checkpoints.write_weights(3, trainer._policy.published_tensors())
    assert "step 3 is not complete" in temper("checkpoint", "list", run).stdout


def test_damage_is_found_and_ends_with_one(tmp_path: Path, tiny: Path) -> None:
    settings, _ = a_run(tmp_path, tiny)
    run = settings.run_folder
    whole = told("checkpoint", "verify", run)
    assert [(one["step"], one["pruned"], one["problems"]) for one in whole] == [
        (0, True, []), (1, False, []), (2, False, []),
    ]  # fmt: skip
    folder = run / "objects" / "checkpoints" / RUN / "00000001"
    raw = bytearray((folder / "weights.safetensors").read_bytes())
    raw[-3] ^= 4
    (folder / "weights.safetensors").write_bytes(raw)
    broken = temper("checkpoint", "verify", run)
    assert broken.exit_code == 1 and "step 1: " in broken.stdout and "hashes to" in broken.stdout
    assert temper("checkpoint", "verify", f"{run}@2").exit_code == 0
    (folder.with_name("00000002") / "optimizer.index.json").unlink()
    newest = temper("checkpoint", "verify", f"{run}@last")
    assert newest.exit_code == 1 and "step 2: optimizer.index.json is gone" in newest.stdout
    (folder / "manifest.json").write_text("{}")
    assert "its manifest.json is damaged" in temper("checkpoint", "verify", run).stdout


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_export_is_the_policy_to_the_bit(tmp_path: Path, tiny: Path, dtype: str) -> None:
    settings, trainer = a_run(tmp_path, tiny, dtype)
    made = tmp_path / "exported" / "model"
    result = temper("checkpoint", "export", f"{settings.run_folder}@last", made)
    assert result.exit_code == 0, result.output
    served = {"float32": torch.float32, "bfloat16": torch.bfloat16}[dtype]
    loaded = AutoModelForCausalLM.from_pretrained(made, dtype="auto", local_files_only=True).eval()
    assert loaded.dtype is served
    expected = AutoModelForCausalLM.from_pretrained(tiny, dtype=served, local_files_only=True).eval()
    expected.load_state_dict(trainer._policy.published_tensors(), strict=False)  # tied ones are there once
    with torch.no_grad():
        assert torch.equal(loaded(IDS).logits, expected(IDS).logits)
    before, after = (AutoTokenizer.from_pretrained(folder, local_files_only=True) for folder in (tiny, made))
    assert before("12 + 7 = ").input_ids == after("12 + 7 = ").input_ids
    assert before.chat_template == after.chat_template
    assert (made / "generation_config.json").is_file() and not (made / "prepared.json").exists()
    assert json.loads((made / "temper.json").read_text())["step"] == 2
    # What was exported is a model of a run, too.
    load_policy(settings.model.model_copy(update={"path": str(made)}), settings.learner)


def refused(command: Callable[[], Result]) -> Exception:
    result = command()
    assert result.exit_code and result.exception is not None
    return result.exception  # type: ignore[return-value]


def test_what_cannot_be_exported_is_said_and_leaves_nothing(tmp_path: Path, tiny: Path) -> None:
    settings, _ = a_run(tmp_path, tiny)
    run = settings.run_folder
    there = tmp_path / "there"
    there.mkdir()
    (there / "mine.txt").write_text("mine")
    error = refused(lambda: temper("checkpoint", "export", run, there))
    assert isinstance(error, ConfigError) and "is there already" in str(error)
    error = refused(lambda: temper("checkpoint", "export", f"{run}@0", tmp_path / "new"))
    assert isinstance(error, ConfigError) and "kept are the steps 1, 2" in str(error)
    weights = run / "objects" / "checkpoints" / RUN / "00000002" / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\0")
    error = refused(lambda: temper("checkpoint", "export", run, tmp_path / "new"))
    assert isinstance(error, StorageError) and "hashes to" in str(error)
    assert not (tmp_path / "new").exists() and not list(tmp_path.glob(".new*"))
    moved = to_toml(
        resolve(settings.model_copy(update={"model": settings.model.model_copy(update={"path": "/gone"})}))
    )
    (run / "run.toml").write_text(moved)
    error = refused(lambda: temper("checkpoint", "export", f"{run}@1", tmp_path / "new"))
    assert isinstance(error, DependencyError) and "/gone" in str(error)
    error = refused(lambda: temper("checkpoint", "show", tiny))
    assert isinstance(error, ConfigError) and "no run" in str(error)
