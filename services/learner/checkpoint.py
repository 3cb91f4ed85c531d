"""Checkpoints: weights, optimizer, offsets and slots, complete or absent.

Invariant (3 of the design): the manifest is written last and names the digest of every other file, so a folder
with a manifest is complete and one without is nothing. Large files of old checkpoints are pruned; their state and
manifest stay, so that durability can be proved afterwards.

Layout, under `checkpoints/<run>/<step>/`: weights.safetensors (the very object that is published, whole, so that an
engine needs nothing of ours to read it), optimizer-*.safetensors with optimizer.index.json (`sharded`: moments, and
the float32 master weights where another dtype is served), state.json, manifest.json.

Served weights are in one place only. Masters beside float32 weights would be the same bytes again: 16 bytes a
parameter instead of 12. Beside bfloat16 they are needed: 2 + 4 + 8 bytes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor

from services.learner.checkpoint_folders import CheckpointFolders
from services.learner.manifest import (
    FORMAT,
    MANIFEST,
    OLD_OPTIMIZER,
    OPTIMIZER,
    STATE,
    WEIGHTS,
    Manifest,
    StoredFile,
)
from services.learner.sharded import SavedShards, read_sharded, save_sharded
from services.learner.tensorfile import read_tensors, store_tensors
from shared.contracts import WeightsRef
from shared.errors import StorageError
from shared.storage import ObjectStore
from shared.weights.adapter import AdapterInfo


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A complete checkpoint, read back. Weights are mapped from the disk; the optimizer is in memory."""

    step: int
    state: dict[str, Any]
    weights: dict[str, Tensor]
    optimizer: dict[str, Tensor]


class CheckpointStore(CheckpointFolders):
    """Writes and reads the checkpoints of one run. Blocking: call it in a thread."""

    def write_weights(
        self, step: int, tensors: Mapping[str, Tensor], adapter: AdapterInfo | None = None
    ) -> WeightsRef:
        """The first file of a checkpoint, and what announces it. `adapter`: what the tensors are of, where they are no
        whole weights. Raises `StorageError`."""
        metadata = {} if adapter is None else adapter.to_metadata()
        key = f"{self.folder(step)}/{WEIGHTS}"
        written = store_tensors(self.store, key, tensors, entries=True, metadata=metadata)
        return WeightsRef(
            uri=self.store.uri_of(f"{self.folder(step)}/{WEIGHTS}"),
            sha256=written.sha256,
            size_bytes=written.size_bytes,
            kind="full" if adapter is None else "adapter",
            tensors=written.tensors,
        )

    def write_optimizer(
        self, step: int, tensors: Mapping[str, Tensor], group: dist.ProcessGroup | None = None
    ) -> dict[str, StoredFile]:
        """The second part, by every rank of `group`; rank 0 is told the files. Raises `StorageError`."""
        return save_sharded(self.store, self.folder(step), OPTIMIZER, tensors, group)

    def complete(
        self, step: int, weights: WeightsRef, optimizer: Mapping[str, StoredFile], state: Mapping[str, Any]
    ) -> None:
        """Writes the state, then the manifest. Raises `StorageError`."""
        folder = self.folder(step)
        body = json.dumps({"format": FORMAT, **state}, separators=(",", ":"), sort_keys=True).encode()
        stored = self.store.put_bytes(f"{folder}/{STATE}", body)
        files = {
            WEIGHTS: StoredFile(weights.sha256, weights.size_bytes),
            **optimizer,
            STATE: StoredFile(stored.sha256, stored.size_bytes),
        }
        manifest = Manifest(step, files, int(time.time() * 1000))
        self.store.put_bytes(f"{folder}/{MANIFEST}", manifest.to_json())

    def newest(self, cache: Path) -> Checkpoint | None:
        """The newest complete checkpoint, every digest checked; None where there is none.

        Raises `StorageError` (`DigestMismatchError` among them) for one that is complete and damaged: going on from
        an older one would give out version numbers a second time.
        """
        steps = self.steps()
        return self.load(steps[-1], cache) if steps else None

    def load(self, step: int, cache: Path) -> Checkpoint:
        """The complete checkpoint of `step`, every digest checked. Raises `StorageError` as `newest`, and for one
        that is not there or was pruned."""
        manifest = self.manifest(step)
        state = self.state(step, manifest)
        weights, optimizer = read_checkpoint(self.store, self.folder(step), manifest, cache)
        return Checkpoint(step, state, weights, optimizer)


def read_checkpoint(
    store: ObjectStore, folder: str, manifest: Manifest, cache: Path
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """(weights, optimizer) of a checkpoint's folder, every digest checked. Weights are mapped from the disk.

    Raises `StorageError`: damaged, or pruned.
    """
    digests = manifest.digests

    def file(name: str) -> dict[str, Tensor]:
        return read_tensors(store.fetch(store.uri_of(f"{folder}/{name}"), digests[name], cache))

    try:
        weights = file(WEIGHTS)
        if OLD_OPTIMIZER in digests:
            return weights, {name: tensor.clone() for name, tensor in file(OLD_OPTIMIZER).items()}
    except KeyError as error:
        raise StorageError(
            f"checkpoint {folder}: its manifest names no {error}: restore it from a copy"
        ) from error
    return weights, read_sharded(SavedShards(store, folder, OPTIMIZER, digests, cache))
