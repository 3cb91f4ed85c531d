"""Checkpoints: weights, optimizer, offsets and slots, complete or absent.

Invariant (3 of the design): the manifest is written last and names the digest of every other file, so a folder
with a manifest is complete and one without is nothing. Large files of old checkpoints are pruned; their state and
manifest stay, so that durability can be proved afterwards.

Layout, under `checkpoints/<run>/<step>/`: weights.safetensors (the very object that is published),
optimizer.safetensors (moments, and the float32 master weights where another dtype is served), state.json, manifest.json.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from services.learner.tensorfile import WrittenFile, read_tensors, store_tensors
from shared.contracts import WeightsRef
from shared.errors import StorageError, TemperError
from shared.storage import ObjectStore

WEIGHTS, OPTIMIZER = "weights.safetensors", "optimizer.safetensors"
STATE, MANIFEST = "state.json", "manifest.json"
FORMAT = 1


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A complete checkpoint, read back. Tensors are mapped from the disk."""

    step: int
    state: dict[str, Any]
    weights: dict[str, Tensor]
    optimizer: dict[str, Tensor]


class CheckpointStore:
    """The checkpoints of one run. Blocking: call it in a thread."""

    def __init__(self, store: ObjectStore, run_id: str) -> None:
        self._store = store
        self._root = f"checkpoints/{run_id}"

    def uri(self, step: int) -> str:
        return self._store.uri_of(self._folder(step))

    def steps(self) -> list[int]:
        """Steps of complete checkpoints, ascending."""
        manifests = [key for key in self._store.list(f"{self._root}/") if key.endswith(f"/{MANIFEST}")]
        names = [key.split("/")[-2] for key in manifests]
        return sorted(int(name) for name in names if name.isdecimal())

    def write_weights(self, step: int, tensors: Mapping[str, Tensor]) -> WeightsRef:
        """The first file of a checkpoint, and what announces it. Raises `StorageError`."""
        written = self._write(step, WEIGHTS, tensors, entries=True)
        return WeightsRef(
            uri=self._store.uri_of(f"{self._folder(step)}/{WEIGHTS}"),
            sha256=written.sha256,
            size_bytes=written.size_bytes,
            tensors=written.tensors,
        )

    def complete(
        self, step: int, weights: WeightsRef, optimizer: Mapping[str, Tensor], state: Mapping[str, Any]
    ) -> None:
        """Writes what is left and the manifest. Raises `StorageError`."""
        moments = self._write(step, OPTIMIZER, optimizer)
        folder = self._folder(step)
        body = json.dumps({"format": FORMAT, **state}, separators=(",", ":"), sort_keys=True).encode()
        stored = self._store.put_bytes(f"{folder}/{STATE}", body)
        files = {
            WEIGHTS: {"sha256": weights.sha256, "size_bytes": weights.size_bytes},
            OPTIMIZER: {"sha256": moments.sha256, "size_bytes": moments.size_bytes},
            STATE: {"sha256": stored.sha256, "size_bytes": stored.size_bytes},
        }
        manifest = {"format": FORMAT, "step": step, "files": files, "created_ms": int(time.time() * 1000)}
        self._store.put_bytes(f"{folder}/{MANIFEST}", json.dumps(manifest, indent=1).encode())

    def discard(self, step: int) -> None:
        """Removes a checkpoint that did not become complete. A complete one is left alone."""
        if not self._store.exists(f"{self._folder(step)}/{MANIFEST}"):
            # What made the write fail (a full disk) is what must be told, not that cleaning up failed too.
            with contextlib.suppress(TemperError, OSError):
                self._store.delete(self._folder(step))

    def discard_incomplete(self) -> list[int]:
        """Removes what a crash left half written; the steps it was of."""
        complete = set(self.steps())
        keys = self._store.list(f"{self._root}/")
        names = {key.removeprefix(f"{self._root}/").split("/")[0] for key in keys}
        broken = sorted(int(name) for name in names if name.isdecimal() and int(name) not in complete)
        for step in broken:
            self.discard(step)
        return broken

    def prune(self, keep: int, spare: Collection[int] = ()) -> list[int]:
        """Removes weights and optimizer of all but the newest `keep` checkpoints and those of the steps in `spare`;
        the steps it was done to."""
        pruned = []
        for step in self.steps()[: -max(1, keep)]:
            if step in spare:
                continue
            keys = [f"{self._folder(step)}/{name}" for name in (WEIGHTS, OPTIMIZER)]
            held = [key for key in keys if self._store.exists(key)]
            for key in held:
                self._store.delete(key)
            if held:
                pruned.append(step)
        return pruned

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
        folder = self._folder(step)
        manifest = _json(self._store.get_bytes(self._store.uri_of(f"{folder}/{MANIFEST}")), folder)
        files = manifest["files"]
        raw = self._store.get_bytes(self._store.uri_of(f"{folder}/{STATE}"), files[STATE]["sha256"])
        state = _json(raw, folder)
        if state.get("format") != FORMAT:
            raise StorageError(
                f"checkpoint {self.uri(step)} has format {state.get('format')}, this build reads {FORMAT}: "
                "resume it with the build that wrote it"
            )
        weights, optimizer = (
            read_tensors(
                self._store.fetch(self._store.uri_of(f"{folder}/{name}"), files[name]["sha256"], cache)
            )
            for name in (WEIGHTS, OPTIMIZER)
        )
        return Checkpoint(step, state, weights, optimizer)

    def _folder(self, step: int) -> str:
        return f"{self._root}/{step:08d}"

    def _write(
        self, step: int, name: str, tensors: Mapping[str, Tensor], *, entries: bool = False
    ) -> WrittenFile:
        return store_tensors(self._store, f"{self._folder(step)}/{name}", tensors, entries=entries)


def _json(raw: bytes, folder: str) -> dict[str, Any]:
    try:
        document = json.loads(raw)
    except ValueError as error:
        raise StorageError(f"checkpoint {folder} is damaged: {error}; restore it from a copy") from error
    if not isinstance(document, dict):
        raise StorageError(f"checkpoint {folder} is damaged: no JSON object; restore it from a copy")
    return document
