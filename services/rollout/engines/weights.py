"""New weights into a model that is already there.

Invariant: either every tensor of the file fits and all are copied, or the model is as it was; tied parameters are
written once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from shared.errors import AttestationError
from shared.weights.unreadable import unreadable


def load_weights(model: Any, path: Path) -> None:
    """Copies the safetensors file `path` into the parameters of `model`, in place, one tensor at a time.

    Raises `AttestationError` naming the first tensor that is missing, unknown, or of another shape or dtype.
    """
    try:
        with safe_open(str(path), framework="pt", device="cpu") as file:
            names = set(file.keys())
            targets = _targets(model, names, path)
            _check(file, targets, path)
            _check_ties(file, model, names - set(targets), targets, path)
            with torch.no_grad():
                for name, target in targets.items():
                    target.copy_(file.get_tensor(name))
    except (SafetensorError, OSError) as error:
        raise unreadable(path, error) from error


def _targets(model: Any, names: set[str], path: Path) -> dict[str, Tensor]:
    """Tensor name in the file → the model's own storage; tied names lead to one storage and are written once."""
    state: dict[str, Tensor] = model.state_dict(keep_vars=True)
    unknown = sorted(names - set(state))
    if unknown:
        raise AttestationError(
            f"weights {path}: tensor {unknown[0]!r} is not in the model ({len(unknown)} unknown): "
            "the learner trains another architecture than settings model.path"
        )
    targets: dict[str, Tensor] = {}
    written: set[int] = set()
    for name in sorted(names):
        if id(state[name]) not in written:
            written.add(id(state[name]))
            targets[name] = state[name]
    missing = sorted(name for name, tensor in state.items() if id(tensor) not in written)
    if missing:
        raise AttestationError(
            f"weights {path}: tensor {missing[0]!r} is missing ({len(missing)} in all): "
            "the learner trains another architecture than settings model.path"
        )
    return targets


def _check(file: Any, targets: dict[str, Tensor], path: Path) -> None:
    for name, target in targets.items():
        part = file.get_slice(name)
        shape, dtype = list(part.get_shape()), part.get_dtype()
        if shape != list(target.shape):
            raise AttestationError(
                f"weights {path}: tensor {name!r} has shape {shape}, the model's is {list(target.shape)}"
                + vocabulary_hint(name, shape[0], target.shape[0])
            )
        if dtype != _DTYPES.get(target.dtype):
            raise AttestationError(
                f"weights {path}: tensor {name!r} is {dtype}, the model's is {target.dtype}: "
                "give learner and rollout the same model.dtype"
            )


def _check_ties(file: Any, model: Any, spare: set[str], targets: dict[str, Tensor], path: Path) -> None:
    """A tied tensor may be in the file under both names, but not with two values."""
    state: dict[str, Tensor] = model.state_dict(keep_vars=True)
    for name in sorted(spare):
        twin = next(other for other, tensor in targets.items() if tensor is state[name])
        if not torch.equal(file.get_tensor(name), file.get_tensor(twin)):
            raise AttestationError(
                f"weights {path}: {name!r} and {twin!r} differ, and this model ties them; "
                "the learner trains an untied copy"
            )


def vocabulary_hint(name: str, announced: int, own: int) -> str:
    """What to add where the first axis of an embedding differs."""
    if announced == own or not name.endswith(("embed_tokens.weight", "wte.weight", "lm_head.weight")):
        return ""
    return (
        f": the vocabulary changed from {own} to {announced} tokens; ids already sampled would mean something else, "
        "so start a run of its own with the new model.path"
    )


_DTYPES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.float64: "F64"}
