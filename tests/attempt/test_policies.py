"""Which policy a text names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shared.errors import ConfigError, DataError, StorageError
from shared.settings import parse_settings
from shared.storage import ObjectStore
from temper.policies import FolderPolicy, RunPolicy, find_policy
from temper.up.resolved import to_toml


def made_run(tmp_path: Path, kept: dict[int, bytes], pruned: tuple[int, ...] = (), rates: Any = ()) -> Path:
    settings = parse_settings(
        {
            "run": {"name": "demo", "folder": str(tmp_path)},
            "model": {"path": "models/none"},
            "domains": [{"name": "arithmetic"}],
            "stages": [{"kind": "rl", "steps": 1}],
        }
    )
    folder = settings.run_folder
    folder.mkdir(parents=True)
    (folder / "run.toml").write_text(to_toml(settings))
    store = ObjectStore(settings.storage_uri)
    for step in (*kept, *pruned):
        place = f"checkpoints/demo/{step:08d}"
        files = {}
        if step in kept:
            files["weights.safetensors"] = {
                "sha256": store.put_bytes(f"{place}/weights.safetensors", kept[step]).sha256
            }
        store.put_bytes(f"{place}/manifest.json", json.dumps({"files": files}).encode())
    if rates:
        evaluations = [{"step": step, "overall": {"rate": rate}} for step, rate in rates]
        (folder / "summary.json").write_text(json.dumps({"evaluations": evaluations}))
    return folder


def step_of(text: str) -> int:
    found = find_policy(text)
    assert isinstance(found, RunPolicy)
    return found.step


def test_a_checkpoint_by_its_step_the_last_and_the_best(tmp_path: Path) -> None:
    rates = [(0, 0.1), (4, 0.7), (8, 0.7), (10, 0.5), (12, None)]
    folder = made_run(tmp_path, {4: b"four", 8: b"eight", 10: b"ten"}, pruned=(0, 2), rates=rates)
    store = ObjectStore(f"file://{folder / 'objects'}")
    assert [step_of(f"{folder}{which}") for which in ("", "@last", "@best", "@4", "@00000004")] == [
        10,
        10,
        8,
        4,
        4,
    ]
    found = find_policy(f"{folder}@4")
    assert isinstance(found, RunPolicy)
    assert str(found) == "demo@4"
    assert store.get_bytes(found.uri, found.sha256) == b"four"


def test_a_run_that_was_moved_is_found_where_it_is(tmp_path: Path) -> None:
    made_run(tmp_path / "before", {3: b"x"})
    (tmp_path / "after").mkdir()
    (tmp_path / "before/demo").rename(tmp_path / "after/demo")
    found = find_policy(f"{tmp_path}/after/demo@last")
    assert isinstance(found, RunPolicy)
    assert f"{tmp_path}/after/demo/objects/" in found.uri


@pytest.mark.parametrize(
    ("which", "why"),
    [
        ("@2", "weights were pruned; kept are the steps 4, 8"),
        ("@5", "no such checkpoint; kept are the steps 4, 8"),
        ("@bets", "no such checkpoint"),
        (
            "@best",
            r"step 6 \(90% of held-out instances\), whose weights were pruned; kept are the steps 4, 8",
        ),
    ],
)
def test_what_is_not_there_is_refused_with_what_is(tmp_path: Path, which: str, why: str) -> None:
    folder = made_run(tmp_path, {4: b"4", 8: b"8"}, pruned=(2, 6), rates=[(4, 0.2), (6, 0.9)])
    with pytest.raises(ConfigError, match=why):
        find_policy(f"{folder}{which}")


def test_a_folder_of_a_model_has_no_steps(tiny_folder: Path) -> None:
    found = find_policy(str(tiny_folder))
    assert isinstance(found, FolderPolicy)
    with pytest.raises(ConfigError, match="has no @best"):
        find_policy(f"{tiny_folder}@best")


def test_what_is_neither_run_nor_model(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="neither a run's folder"):
        find_policy(str(tmp_path / "nothing"))
    empty = made_run(tmp_path, {})
    with pytest.raises(ConfigError, match="no checkpoint with its weights"):
        find_policy(str(empty))


def test_a_run_without_evaluations_or_with_damage(tmp_path: Path) -> None:
    folder = made_run(tmp_path, {4: b"4"})
    with pytest.raises(ConfigError, match="not there yet: use @last"):
        find_policy(f"{folder}@best")
    (folder / "summary.json").write_text("{")
    with pytest.raises(DataError, match=r"summary\.json is no summary"):
        find_policy(f"{folder}@best")
    (folder / "objects/checkpoints/demo/00000004/manifest.json").write_text("[]")
    with pytest.raises(StorageError, match=r"its manifest\.json is damaged"):
        find_policy(f"{folder}@last")
