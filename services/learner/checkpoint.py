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
    OPTIMIZER,
    STATE,
    WEIGHTS,
    Manifest,
    StoredFile,
)
from services.learner.sharded import SavedShards, save_sharded
from services.learner.tensorfile import read_tensors, store_tensors
from shared.contracts import WeightsRef
from shared.errors import StorageError
from shared.storage import ObjectStore
from shared.weights.adapter import AdapterInfo


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A complete checkpoint, read back. Weights are mapped from the disk; of the optimizer's state every rank reads its
    own part."""

    step: int
    state: dict[str, Any]
    weights: dict[str, Tensor]
    optimizer: SavedShards


class CheckpointStore(CheckpointFolders):
    """Writes and reads the checkpoints of one run. Blocking: call it in a thread."""

    def write_weights(
        self, step: int, tensors: Mapping[str, Tensor], adapter: AdapterInfo | None = None
    ) -> WeightsRef:
        """The file that is served, and what announces it. `adapter`: what the tensors are of, where they are no
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
        """By every rank of `group` its own part; rank 0 is told the files when all have written. Raises as
        `save_sharded`, and `StorageError` where another rank's file is not there."""
        files = save_sharded(self.store, self.folder(step), OPTIMIZER, tensors, group)
        for name in files:
            if not self.store.exists(f"{self.folder(step)}/{name}"):
                raise StorageError(
                    f"{self.uri(step)}/{name} was written by another rank and is not there: storage.uri must be a place "
                    "that all machines of the learner share"
                )
        return files

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
        """The newest complete checkpoint; None where there is none. See `load`.

        Raises `StorageError` (`DigestMismatchError` among them) for one that is complete and damaged: going on from
        an older one would give out version numbers a second time.
        """
        steps = self.steps()
        return self.load(steps[-1], cache) if steps else None

    def load(self, step: int, cache: Path) -> Checkpoint:
        """The complete checkpoint of `step`: every digest is checked, the optimizer's when it is read. Raises
        `StorageError` as `newest`, and for one that is not there or was pruned."""
        manifest = self.manifest(step)
        state = self.state(step, manifest)
        weights, optimizer = read_checkpoint(self.store, self.folder(step), manifest, cache)
        return Checkpoint(step, state, weights, optimizer)


def read_checkpoint(
    store: ObjectStore, folder: str, manifest: Manifest, cache: Path
) -> tuple[dict[str, Tensor], SavedShards]:
    """(weights, where the optimizer's state is) of a checkpoint's folder. Weights are mapped from the disk, their digest
    checked. Raises `StorageError`: damaged, or pruned."""
    digests = manifest.digests
    try:
        path = store.fetch(store.uri_of(f"{folder}/{WEIGHTS}"), digests[WEIGHTS], cache)
    except KeyError as error:
        raise StorageError(
            f"checkpoint {folder}: its manifest names no {error}: restore it from a copy"
        ) from error
    return read_tensors(path), SavedShards(store, folder, OPTIMIZER, digests, cache)
