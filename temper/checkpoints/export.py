"""A Hugging Face folder made of a checkpoint: what other tools load.

Invariant: the folder appears whole or not at all, and never in the place of something; its weights are the bytes that
the checkpoint's manifest names, everything else comes from the model's own folder.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from services.learner.checkpoint_folders import CheckpointFolders
from services.learner.manifest import WEIGHTS
from shared.errors import ConfigError, StorageError
from shared.model_folder import check_model_folder
from shared.storage.local import disk_error
from shared.weights.adapter import Base, info_of

RECORD, MODEL = "temper.json", "model.safetensors"
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx", ".index.json")
_OURS = ("prepared.json", RECORD)
_DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16", "F64": "float64"}


def export(folders: CheckpointFolders, step: int, run_id: str, model: Path, folder: Path) -> Path:
    """Writes the weights of `step` with configuration and tokenizer of `model` to `folder`; the folder.

    Raises `ConfigError` where `folder` holds something, `DependencyError` for a model folder that is not whole,
    `StorageError` (damaged, pruned, disk full).
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} is there already: give a folder that does not exist, or remove it")
    check_model_folder(str(model))
    manifest = folders.manifest(step)
    wanted = manifest.files[WEIGHTS]
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as scratch:
            made = Path(scratch) / "folder"
            made.mkdir()
            for file in _companions(model):
                shutil.copyfile(file, made / file.name)
            uri = folders.store.uri_of(f"{folders.folder(step)}/{WEIGHTS}")
            source = folders.store.fetch(uri, wanted.sha256, Path(scratch))
            if info_of(source) is not None:
                # Rounded to what the run serves only by whoever loads it: an export may be trained on.
                source = Base(model, "float32").whole(source, Path(scratch) / "whole.safetensors")
            shutil.copyfile(source, made / MODEL)
            _name_dtype(made)
            record = {"run": run_id, "step": step, "weights_sha256": wanted.sha256}
            (made / RECORD).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
            check_model_folder(str(made))
            made.replace(folder)
    except OSError as error:
        raise disk_error(folder, error, wanted.size_bytes) from error
    return folder


def _companions(model: Path) -> Iterator[Path]:
    """Everything of the model's folder that is no weights: configuration, tokenizer, chat template, licence."""
    for file in sorted(model.iterdir()):
        taken = file.name.startswith(".") or file.name in _OURS or file.name.endswith(_WEIGHTS)
        if file.is_file() and not taken:
            yield file


def _name_dtype(folder: Path) -> None:
    """The configuration names the dtype of the weights that lie beside it: loaders convert to what it names."""
    from safetensors import safe_open

    with safe_open(folder / MODEL, framework="np") as weights:
        dtypes = {weights.get_slice(name).get_dtype() for name in weights.keys()}  # noqa: SIM118  (no mapping)
    found = sorted(dtypes & _DTYPES.keys())
    if len(found) != 1:
        raise StorageError(f"{folder}: its weights have the dtypes {sorted(dtypes)}: one of floats is needed")
    place = folder / "config.json"
    config = json.loads(place.read_text(encoding="utf-8"))
    for key in ("dtype", "torch_dtype"):
        if key in config:
            config[key] = _DTYPES[found[0]]
    place.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
