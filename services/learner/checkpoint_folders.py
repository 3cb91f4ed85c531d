"""Where the checkpoints of a run are, which are complete and which are pruned; no tensor is looked at.

Invariant: a folder with a manifest is a complete checkpoint and is never deleted, only stripped of its large files;
one without is nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from typing import Any

from services.learner.manifest import (
    MANIFEST,
    STATE,
    WEIGHTS,
    Manifest,
    check_format,
    read_document,
    read_manifest,
)
from shared.errors import TemperError
from shared.storage import ObjectStore


class CheckpointFolders:
    """`checkpoints/<run>/<step>/` of one run. Blocking."""

    def __init__(self, store: ObjectStore, run_id: str) -> None:
        self.store = store
        self._root = f"checkpoints/{run_id}"

    def uri(self, step: int) -> str:
        return self.store.uri_of(self.folder(step))

    def steps(self) -> list[int]:
        """Steps of complete checkpoints, ascending."""
        manifests = [key for key in self.store.list(f"{self._root}/") if key.endswith(f"/{MANIFEST}")]
        names = [key.split("/")[-2] for key in manifests]
        return sorted(int(name) for name in names if name.isdecimal())

    def discard(self, step: int) -> None:
        """Removes a checkpoint that did not become complete. A complete one is left alone."""
        # What made the write fail (a full disk) is what must be told, not that cleaning up failed too.
        with contextlib.suppress(TemperError, OSError):
            if not self.store.exists(f"{self.folder(step)}/{MANIFEST}"):
                self.store.delete(self.folder(step))

    def incomplete(self) -> list[int]:
        """Steps of folders without a manifest: one that is being written, or what a crash left."""
        complete = set(self.steps())
        keys = self.store.list(f"{self._root}/")
        names = {key.removeprefix(f"{self._root}/").split("/")[0] for key in keys}
        return sorted(int(name) for name in names if name.isdecimal() and int(name) not in complete)

    def discard_incomplete(self) -> list[int]:
        """Removes what a crash left half written; the steps it was of. Only for the one who writes."""
        broken = self.incomplete()
        for step in broken:
            self.discard(step)
        return broken

    def held(self) -> list[int]:
        """Steps whose weights are still there, ascending."""
        return [step for step in self.steps() if self.store.exists(f"{self.folder(step)}/{WEIGHTS}")]

    def strip_all_but(self, kept: Collection[int]) -> list[int]:
        """Removes weights and optimizer of every checkpoint whose step is not in `kept`; the steps it was done to."""
        gone = [step for step in self.held() if step not in kept]
        for step in gone:
            self._strip(step)
        return gone

    def _strip(self, step: int) -> None:
        """Weights last: what still has them still counts as held, and is stripped again after a crash."""
        small = {f"{self.folder(step)}/{name}" for name in (STATE, MANIFEST, WEIGHTS)}
        for key in self.store.list(f"{self.folder(step)}/"):
            if key not in small:
                self.store.delete(key)
        self.store.delete(f"{self.folder(step)}/{WEIGHTS}")

    def manifest(self, step: int) -> Manifest:
        """Raises `StorageError`: not there, damaged, of a format that this build does not read."""
        uri = self.store.uri_of(f"{self.folder(step)}/{MANIFEST}")
        return read_manifest(self.store.get_bytes(uri), self.uri(step))

    def state(self, step: int, manifest: Manifest) -> dict[str, Any]:
        """Raises `StorageError` as `manifest`."""
        uri = self.store.uri_of(f"{self.folder(step)}/{STATE}")
        state = read_document(self.store.get_bytes(uri, manifest.digests.get(STATE)), self.uri(step))
        check_format(state, self.uri(step))
        return state

    def folder(self, step: int) -> str:
        return f"{self._root}/{step:08d}"
