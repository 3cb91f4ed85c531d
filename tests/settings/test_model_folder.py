"""Each way in which a model folder can be seen to be damaged has one line that names the file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from shared.errors import DependencyError
from shared.model_folder import check_loaded, check_model_folder, tensor_shapes
from tests.model_folders import change_json, small_folder, write_json, write_tensors


def test_a_whole_folder_passes(tmp_path: Path) -> None:
    folder = small_folder(tmp_path / "m")
    check_model_folder(str(folder))
    assert tensor_shapes(folder / "model.safetensors")["model.embed_tokens.weight"] == (7, 4)


def test_shards_are_read_together(tmp_path: Path) -> None:
    folder = small_folder(tmp_path / "m")
    (folder / "model.safetensors").unlink()
    parts = {
        "one.safetensors": {"model.embed_tokens.weight": (7, 4), "model.layers.0.w": (1,)},
        "two.safetensors": {"model.layers.1.w": (1,)},
    }
    for name, shapes in parts.items():
        write_tensors(folder / name, shapes)
    names = {tensor: name for name, shapes in parts.items() for tensor in shapes}
    write_json(folder / "model.safetensors.index.json", {"weight_map": names})
    check_model_folder(str(folder))
    (folder / "two.safetensors").unlink()
    with pytest.raises(DependencyError, match=r"names two.safetensors, which is not there \(1 missing\)"):
        check_model_folder(str(folder))


def test_layers_for_further_tokens_and_packed_weights_are_not_refused(tmp_path: Path) -> None:
    folder = small_folder(tmp_path / "m")
    change_json(folder / "config.json", num_hidden_layers=1, num_nextn_predict_layers=1)
    check_model_folder(str(folder))
    change_json(folder / "config.json", num_hidden_layers=9, quantization_config={"bits": 4})
    check_model_folder(str(folder))


def cut(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])


BREAKS: list[tuple[Callable[[Path], object], str]] = [
    (lambda f: (f / "config.json").unlink(), "holds no config.json; .*temper models prepare"),
    (lambda f: (f / "config.json").write_text("{"), "config.json is not valid JSON"),
    (lambda f: (f / "config.json").write_bytes(b"\xff\x00"), "config.json is not valid JSON"),
    (lambda f: (f / "config.json").write_text("[" * 100_000), "config.json is not valid JSON"),
    (lambda f: (f / "config.json").write_text("3"), "config.json holds no JSON object"),
    (lambda f: (f / "generation_config.json").write_text("x"), "generation_config.json is not valid JSON"),
    (lambda f: (f / "tokenizer_config.json").unlink(), "no tokenizer there .*temper models prepare"),
    (lambda f: (f / "tokenizer.json").write_text('{"mod'), "tokenizer.json is not valid JSON"),
    (lambda f: (f / "tokenizer.json").write_text("{}"), "tokenizer.json holds no tokenizer model"),
    (
        lambda f: write_json(f / "tokenizer.json", {"model": {"vocab": {"x": 7}}}),
        "token id 7, config.json says vocab_size 7: they belong to different models",
    ),
    (lambda f: (f / "model.safetensors").unlink(), "holds no weights"),
    (lambda f: (f / "model.safetensors").write_bytes(b""), r"no safetensors file \(0 bytes\)"),
    (lambda f: (f / "model.safetensors").write_bytes(b"junk" * 100), r"no safetensors file \(400 bytes\)"),
    (
        lambda f: (f / "model.safetensors").write_bytes((9).to_bytes(8, "little") + b'{"a":[1]}'),
        "its header is not readable",
    ),
    (cut, "has .* bytes, its header says .*: it is damaged"),
    (
        lambda f: write_json(f / "model.safetensors.index.json", {}) or (f / "model.safetensors").unlink(),
        "names no weights",
    ),
    (
        lambda f: change_json(f / "config.json", vocab_size=9),
        r"vocab_size is 9, and model.embed_tokens.weight is \[7, 4\]",
    ),
    (
        lambda f: change_json(f / "config.json", hidden_size=8),
        r"hidden_size is 8, and model.embed_tokens.weight is \[7, 4\]",
    ),
    (
        lambda f: change_json(f / "config.json", num_hidden_layers=3),
        "num_hidden_layers is 3, and the weights have 2 layers",
    ),
    (
        lambda f: change_json(f / "config.json", num_hidden_layers=1),
        "num_hidden_layers is 1, and the weights have 2 layers",
    ),
]


@pytest.mark.parametrize(("damage", "words"), BREAKS, ids=[words[:40] for _, words in BREAKS])
def test_what_is_damaged_is_named(damage: Callable[[Path], object], words: str, tmp_path: Path) -> None:
    folder = small_folder(tmp_path / "m")
    damage(folder)
    with pytest.raises(DependencyError, match=words) as caught:
        check_model_folder(str(folder))
    assert "\n" not in str(caught.value) and str(folder) in str(caught.value)


def test_tensors_that_a_loader_would_make_up_are_refused() -> None:
    check_loaded("m", {"missing_keys": set(), "unexpected_keys": {"a.rotary_emb.inv_freq", "mtp.norm"}})
    for info, words in (
        ({"missing_keys": ["b.weight", "a.weight"]}, r"tensor a.weight is missing \(2 in all\)"),
        ({"mismatched_keys": [("a", (2, 3), (2, 4))]}, r"a is \[2, 3\], the configuration wants \[2, 4\]"),
        ({"unexpected_keys": ["c"]}, "tensor c is not in the model"),
    ):
        with pytest.raises(DependencyError, match=words):
            check_loaded("m", info)


def test_the_hand_made_folder_is_the_format_s(tmp_path: Path) -> None:
    from safetensors import safe_open

    with safe_open(str(small_folder(tmp_path / "m") / "model.safetensors"), framework="np") as file:
        assert list(file.get_tensor("model.embed_tokens.weight").shape) == [7, 4]
    assert json.loads((tmp_path / "m" / "config.json").read_text())["num_hidden_layers"] == 2
