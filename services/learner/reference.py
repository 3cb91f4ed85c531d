"""The reference policy of a KL term: the weights at the start of a stage, frozen.

Invariant: it is written once, under its digest, before the first checkpoint that depends on it is complete, so a
restart measures against the very same weights.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from services.learner.replica import Replica
from services.learner.tensorfile import read_tensors, store_tensors
from shared.errors import StorageError
from shared.storage import ObjectStore


@dataclass
class FrozenReference:
    """The weights of a frozen policy, and where they are stored, once they are."""

    key: str
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    stored: dict[str, str] | None = None

    def store(self, store: ObjectStore) -> dict[str, str]:
        """Writes it unless it is written; where it is. Raises `StorageError`."""
        if self.stored is None:
            written = store_tensors(store, self.key, self.tensors)
            self.stored = {"uri": store.uri_of(self.key), "sha256": written.sha256}
            self.tensors = {}
        return self.stored


class ReferencePolicy:
    """The replica holds it; it has none where the stage's objective has no KL term."""

    def __init__(self, store: ObjectStore, run_id: str, replica: Replica) -> None:
        self._store = store
        self._replica = replica
        self._folder = _folder(run_id)
        self._frozen: FrozenReference | None = None
        self.wanted = False

    def drop(self) -> None:
        """The stage ends."""
        self.wanted = False
        self.renew()

    def renew(self) -> None:
        """The policy as it is now becomes the reference, with the checkpoint that is about to be written."""
        self._frozen = None
        self._replica.drop_reference()

    def freeze(self, stage_index: int, stage_step: int = 0) -> FrozenReference | None:
        """Freezes the policy if the stage wants a reference and has none; what the checkpoint must store.

        Every reference has a key of its own: older checkpoints still name theirs.
        """
        if not self.wanted:
            return None
        if self._frozen is None:
            # Fixed width: names sort in the order in which the references were made.
            key = f"{self._folder}/{stage_index:04d}-{stage_step:08d}.safetensors"
            self._frozen = FrozenReference(key, self._replica.freeze_reference())
        return self._frozen

    def load(self, kept: dict[str, Any] | None, cache: Path) -> None:
        """Restores it beside a restored policy. Raises `StorageError`."""
        if kept is None:
            raise StorageError("the checkpoint names no reference policy, and the objective has a KL term")
        self.wanted = True
        self._replica.put_reference(read_tensors(self._store.fetch(kept["uri"], kept["sha256"], cache)))
        self._frozen = FrozenReference("", stored={"uri": kept["uri"], "sha256": kept["sha256"]})


def prune_references(store: ObjectStore, run_id: str, named: Collection[str]) -> None:
    """Removes all but those whose URI is in `named`: by the checkpoints that can still be resumed."""
    for key in store.list(f"{_folder(run_id)}/"):
        if store.uri_of(key) not in named:
            store.delete(key)


def _folder(run_id: str) -> str:
    return f"references/{run_id}"
