"""Model folders made by hand, without torch: as much as is checked before anything is loaded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

VOCABULARY, WIDTH, LAYERS = 7, 4, 2


def small_folder(folder: Path) -> Path:
    """A folder that passes `check_model_folder`. Its weights are zeros."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "model_type": "llama",
        "vocab_size": VOCABULARY,
        "hidden_size": WIDTH,
        "num_hidden_layers": LAYERS,
    }
    write_json(folder / "config.json", config)
    write_json(folder / "generation_config.json", {"eos_token_id": 1})
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast"})
    vocabulary = {chr(97 + number): number for number in range(VOCABULARY)}
    write_json(folder / "tokenizer.json", {"model": {"type": "WordLevel", "vocab": vocabulary}})
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCABULARY, WIDTH)}
    shapes |= {f"model.layers.{layer}.mlp.up_proj.weight": (8, WIDTH) for layer in range(LAYERS)}
    write_tensors(folder / "model.safetensors", shapes)
    return folder


def write_json(path: Path, document: Any) -> None:
    path.write_text(json.dumps(document))


def change_json(path: Path, **changes: Any) -> None:
    write_json(path, {**json.loads(path.read_text()), **changes})


def write_tensors(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """A safetensors file of float32 zeros, from the format's description."""
    header, place = {}, 0
    for name, shape in shapes.items():
        size = 4
        for length in shape:
            size *= length
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [place, place + size]}
        place += size
    head = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    path.write_bytes(len(head).to_bytes(8, "little") + head + bytes(place))
