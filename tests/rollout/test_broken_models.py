"""A damaged model, or a device that is not there, is one line of the rollout and of the learner: no traceback."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from services.learner.model import load_policy
from services.rollout.opening import open_parts
from shared.errors import ConfigError, DependencyError
from shared.settings import Settings, parse_settings
from tests.model_folders import change_json


def settings_of(folder: Path, **sections: object) -> Settings:
    return parse_settings(
        {
            "run": {"name": "r"},
            "model": {"path": str(folder)},
            "domains": [{"name": "arithmetic"}],
            "stages": [{"kind": "rl", "steps": 1}],
            **sections,
        }
    )


def lose_a_tensor(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.mlp.gate_proj.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def cut(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000])


BOTH: list[tuple[Callable[[Path], object], str]] = [
    (cut, "has 5,000 bytes, its header says"),
    (lose_a_tensor, r"tensor model.layers.1.mlp.gate_proj.weight is missing \(1 in all\)"),
    (lambda f: change_json(f / "config.json", intermediate_size=100), "the configuration wants"),
    (lambda f: change_json(f / "config.json", model_type="lama"), "cannot be loaded: .*lama"),
    (lambda f: change_json(f / "config.json", num_attention_heads=5), "cannot be loaded: .*attention heads"),
]


@pytest.fixture
def broken(tiny_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_folder, tmp_path / "broken"))


@pytest.mark.parametrize(("damage", "words"), BOTH, ids=[words[:30] for _, words in BOTH])
def test_a_model_that_cannot_be_loaded(damage: Callable[[Path], object], words: str, broken: Path) -> None:
    damage(broken)
    settings = settings_of(broken)
    for load in (lambda: open_parts(settings), lambda: load_policy(settings.model, settings.learner)):
        with pytest.raises(DependencyError, match=words) as caught:
            load()
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("tokenizer.json", '{"model": {"type": "BPE"}}', "the tokenizer cannot be loaded"),
        ("generation_config.json", '{"eos_token_id": "x"}', "does not say eos_token_id"),
    ],
)
def test_a_damaged_tokenizer(name: str, text: str, words: str, broken: Path) -> None:
    (broken / name).write_text(text)
    with pytest.raises(DependencyError, match=words) as caught:
        open_parts(settings_of(broken))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("section", ["rollout", "learner"])
def test_a_device_that_is_not_there_is_named(section: str, tiny_folder: Path) -> None:
    absent = f"cuda:{torch.cuda.device_count()}"
    for device, error, words in (
        (
            absent,
            DependencyError,
            rf"{section}.device is '{absent}' and this machine has \d+ such accelerators",
        ),
        ("gpu", ConfigError, f"{section}.device is 'gpu': use auto, cpu, cuda or cuda:<n>"),
    ):
        settings = settings_of(tiny_folder, **{section: {"device": device}})
        with pytest.raises(error, match=words):
            if section == "rollout":
                open_parts(settings)
            else:
                load_policy(settings.model, settings.learner)
