"""The weights that a stage begins with where they are not those of the stage before.

Invariant: they are of the run's own model, tensor for tensor, or they are refused by name; a checkpoint's digests are
checked. Nothing but weights is taken: moments, offsets and progress are the run's own.
"""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from services.learner.checkpoint import read_checkpoint
from services.learner.manifest import MANIFEST, WEIGHTS, read_manifest
from services.learner.model import PolicyModel, load_policy
from services.learner.replica import Replica
from services.learner.restoring import master_weights
from services.learner.sources import neither
from shared.errors import ConfigError, DependencyError
from shared.settings import LearnerSettings, ModelSettings
from shared.storage import ObjectStore
from shared.weights.adapter import AdapterInfo, info_of


def start_from(source: str, replica: Replica, learner: LearnerSettings, cache: Path) -> None:
    """Blocking. Puts the weights of `source`, a checkpoint's folder (path or URI) or a Hugging Face folder.

    Raises `ConfigError` (neither, or of another model), `DependencyError` and `StorageError` (damaged).
    """
    adapters = replica.policy.adapters
    found = _of_checkpoint(source, cache, None if adapters is None else adapters.info)
    if found is None:
        if adapters is not None:
            raise ConfigError(
                f"start_from {source!r} is a model and no checkpoint: learner.lora trains adapters of model.path, which "
                "stays as it is; set model.path to that folder, or name a checkpoint of a run with the same model"
            )
        folder = Path(source)
        if not (folder / "config.json").is_file():
            raise neither(source)
        found = _of_model(source, learner)
    _check_fit(source, replica.policy, found)
    replica.put_weights(found)


def _of_checkpoint(source: str, cache: Path, own: AdapterInfo | None) -> dict[str, Tensor] | None:
    """None where the folder is no complete checkpoint. `own`: of the adapters that the run trains, if it does."""
    where = (source if "://" in source else f"file://{Path(source).absolute()}").rstrip("/")
    parent, _, folder = where.rpartition("/")
    store = ObjectStore(parent)
    if not store.exists(f"{folder}/{MANIFEST}"):
        return None
    manifest = read_manifest(store.get_bytes(store.uri_of(f"{folder}/{MANIFEST}")), source)
    for name in manifest.large:
        if not store.exists(f"{folder}/{name}"):
            raise ConfigError(
                f"start_from {source!r}: its {name} was pruned; name a newer checkpoint, or raise "
                "learner.keep_checkpoints of the run that made it"
            )
    weights = store.fetch(store.uri_of(f"{folder}/{WEIGHTS}"), manifest.digests[WEIGHTS], cache)
    if info_of(weights) != own:
        raise ConfigError(
            f"start_from {source!r} holds {_said(info_of(weights))} and the run trains {_said(own)}: "
            "they do not fit; name a checkpoint of the same model.path and learner.lora"
        )
    return master_weights(*read_checkpoint(store, folder, manifest, cache))


def _said(info: AdapterInfo | None) -> str:
    if info is None:
        return "whole weights"
    return f"adapters of rank {info.rank}, alpha {info.alpha:g}, of the model {info.base_sha256[:12]}"


def _of_model(source: str, learner: LearnerSettings) -> dict[str, Tensor]:
    """In float32, as every master weight is."""
    try:
        return load_policy(ModelSettings(path=source), learner).named_tensors()
    except DependencyError as error:
        raise DependencyError(f"start_from: {str(error).replace('model.path ', '')}") from error


def _check_fit(source: str, policy: PolicyModel, found: dict[str, Tensor]) -> None:
    for name, tensor in policy.named_tensors().items():
        shape = list(found[name].shape) if name in found else None
        if shape != list(tensor.shape):
            raise ConfigError(
                f"start_from {source!r} is of another model than model.path: tensor {name} "
                + ("is not in it" if shape is None else f"is {shape}, the run's is {list(tensor.shape)}")
            )
