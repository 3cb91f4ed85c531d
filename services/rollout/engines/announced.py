"""Whether a weights file fits the model that an engine holds, told from headers alone.

Invariant: a file that passes is complete and has every tensor of the model in its shape and in the run's dtype; an
engine whose own loader is more forgiving (vLLM skips what it does not find) never sees another.
"""

from __future__ import annotations

import json
from pathlib import Path

from safetensors import SafetensorError, safe_open

from services.rollout.engines.bounds import Bounds
from services.rollout.engines.weights import vocabulary_hint
from shared.errors import AttestationError
from shared.weights.unreadable import unreadable

_DTYPES = {"float32": "F32", "bfloat16": "BF16"}
_HEAD = "lm_head.weight"


class ModelShapes:
    """Tensor names and shapes of a Hugging Face folder, its vocabulary and its longest context."""

    def __init__(self, folder: Path, dtype: str) -> None:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        self.vocabulary = int(config["vocab_size"])
        self.positions = int(config["max_position_embeddings"])
        self._dtype = _DTYPES[dtype]
        self._tied = bool(config.get("tie_word_embeddings"))
        self.shapes: dict[str, list[int]] = {}
        for file in sorted(folder.glob("*.safetensors")):
            with safe_open(str(file), framework="numpy") as opened:
                self.shapes |= {name: list(opened.get_slice(name).get_shape()) for name in opened.keys()}  # noqa: SIM118

    def bounds(self, most: int) -> Bounds:
        """Of requests, where the engine has room for `most` tokens."""
        return Bounds(min(most, self.positions), self.vocabulary)

    def check(self, path: Path) -> None:
        """Raises `AttestationError` naming the first tensor that is missing, unknown, or of another shape or dtype."""
        try:
            with safe_open(str(path), framework="numpy") as file:
                found = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
                parts = {name: (list(part.get_shape()), part.get_dtype()) for name, part in found.items()}
        except (SafetensorError, OSError) as error:
            raise unreadable(path, error) from error
        spare = {_HEAD} if self._tied else set()
        for what, names in (
            ("is missing", set(self.shapes) - set(parts) - spare),
            ("is not in the model", set(parts) - set(self.shapes) - spare),
        ):
            if names:
                raise AttestationError(
                    f"weights {path}: tensor {min(names)!r} {what} ({len(names)} in all): "
                    "the learner trains another architecture than settings model.path"
                )
        for name, (shape, dtype) in sorted(parts.items()):
            own = self.shapes.get(name, shape)
            if shape != own:
                raise AttestationError(
                    f"weights {path}: tensor {name!r} has shape {shape}, the model's is {own}"
                    + vocabulary_hint(name, shape[0], own[0])
                )
            if dtype != self._dtype:
                raise AttestationError(
                    f"weights {path}: tensor {name!r} is {dtype}, the run's is {self._dtype}: "
                    "give learner and rollout the same model.dtype"
                )
