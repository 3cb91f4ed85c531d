"""Low-rank adapters as files: what they are of, and the whole weights that they make of their base.

Invariant: an adapter's file says which base it was trained on, by digest, and is never laid on another. What is made is
base + (alpha / rank)·B·A (LoRA, arXiv 2106.09685) of every adapted matrix, added in float32 and rounded once; every
other tensor is the base's own.

Names are those of peft's files (`base_model.model.<module>.lora_A.weight`), so that its users can read them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from shared.errors import AttestationError, StorageError
from shared.storage.local import read_chunks
from shared.weights.layout import WeightsFile
from shared.weights.unreadable import unreadable

METADATA = "temper.adapter"
_PREFIX, _A, _B = "base_model.model.", ".lora_A.weight", ".lora_B.weight"


@dataclass(frozen=True, slots=True)
class AdapterInfo:
    """base_sha256: `folder_sha256` of the model that it was trained on."""

    rank: int
    alpha: float
    base_sha256: str

    @property
    def scale(self) -> float:
        return self.alpha / self.rank

    def to_metadata(self) -> dict[str, str]:
        """Of the file."""
        return {METADATA: json.dumps(asdict(self), sort_keys=True)}


def names_of(module: str) -> tuple[str, str]:
    """(A, B) of the matrix `<module>.weight`."""
    return f"{_PREFIX}{module}{_A}", f"{_PREFIX}{module}{_B}"


def info_of(path: Path) -> AdapterInfo | None:
    """None where the file is no adapter. Raises `StorageError` for one that cannot be read."""
    text = WeightsFile(path).metadata.get(METADATA)
    if text is None:
        return None
    try:
        return AdapterInfo(**json.loads(text))
    except (ValueError, TypeError) as error:
        raise StorageError(f"{path}: what it says of its adapter cannot be read: {error}") from error


def folder_sha256(folder: Path) -> str:
    """Of the weights in a Hugging Face folder: names and bytes of its safetensors files. Reads them all."""
    whole = hashlib.sha256()
    for file in sorted(folder.glob("*.safetensors")):
        whole.update(file.name.encode() + b"\0")
        for chunk in read_chunks(file):
            whole.update(chunk)
    return whole.hexdigest()


class Base:
    """A model's folder on which adapters are laid. Its digest is made once."""

    def __init__(self, folder: Path, dtype: str) -> None:
        self._folder = folder
        self._dtype = dtype
        self._sha256 = ""

    def whole(self, weights: Path, scratch: Path) -> Path:
        """`weights` itself, or for an adapter the file `scratch` with all that it makes of the base, in the run's dtype.

        Raises `AttestationError` for an adapter of another base, or of no matrix in it, and for bytes that are as they
        were announced and no weights; `StorageError` where `scratch` cannot be written.
        """
        try:
            info = info_of(weights)
        except StorageError as error:
            raise unreadable(weights, error) from error
        if info is None:
            return weights
        self._sha256 = self._sha256 or folder_sha256(self._folder)
        if info.base_sha256 != self._sha256:
            raise AttestationError(
                f"weights {weights}: an adapter of the model {info.base_sha256[:12]}, and model.path {str(self._folder)!r} "
                f"is {self._sha256[:12]}: give every process the model that the learner has"
            )
        _merge(weights, info, self._folder, self._dtype, scratch)
        return scratch


def _merge(weights: Path, info: AdapterInfo, folder: Path, dtype: str, scratch: Path) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    adapter = load_file(weights)
    left = set(adapter)
    made: dict[str, Any] = {}
    for file in sorted(folder.glob("*.safetensors")):
        for name, tensor in load_file(file).items():
            value = tensor
            pair = names_of(name.removesuffix(".weight"))
            if pair[0] in adapter and pair[1] in adapter:
                value = _laid_on(tensor, adapter, pair, info.scale)
                left -= set(pair)
            floats = value.is_floating_point()
            made[name] = (value.to(getattr(torch, dtype)) if floats else value).contiguous()
    if left:
        raise AttestationError(
            f"weights {weights}: {min(left)!r} adapts no matrix of model.path {str(folder)!r}: "
            "the learner trains another architecture"
        )
    try:
        save_file(made, scratch, metadata={"format": "pt"})
    except Exception as error:
        raise StorageError(
            f"{scratch}: the whole weights of an adapter cannot be written: {error}"
        ) from error


def _laid_on(tensor: Any, adapter: Mapping[str, Any], pair: tuple[str, str], scale: float) -> Any:
    a, b = (adapter[name].float() for name in pair)
    return tensor.float() + scale * (b @ a)
