"""The reference policy of a KL term: the weights at the start of a stage, frozen.

Invariant: it is written once, under its digest, before the first checkpoint that depends on it is complete, so a
restart measures against the very same weights.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch

from services.learner.model import PolicyModel
from services.learner.tensorfile import read_tensors, store_tensors
from shared.errors import StorageError
from shared.storage import ObjectStore


class ReferencePolicy:
    """`model` is None where the stage's objective has no KL term."""

    def __init__(self, store: ObjectStore, run_id: str) -> None:
        self._store = store
        self._folder = f"references/{run_id}"
        self._kept: dict[str, str] | None = None
        self.wanted = False
        self.model: PolicyModel | None = None

    def drop(self) -> None:
        """The stage ends."""
        self.wanted, self.model, self._kept = False, None, None

    def renew(self) -> None:
        """The policy as it is now becomes the reference, with the checkpoint that is about to be written."""
        self.model, self._kept = None, None

    def keep(self, policy: PolicyModel, stage_index: int, stage_step: int = 0) -> dict[str, str] | None:
        """Freezes and stores the policy if the stage wants a reference and has none; where it is.

        Every reference has a key of its own: older checkpoints still name theirs. Raises `StorageError`.
        """
        if not self.wanted:
            return None
        if self._kept is None:
            self.model = _frozen(policy)
            # Fixed width: names sort in the order in which the references were made.
            key = f"{self._folder}/{stage_index:04d}-{stage_step:08d}.safetensors"
            written = store_tensors(self._store, key, policy.named_tensors())
            self._kept = {"uri": self._store.uri_of(key), "sha256": written.sha256}
        return self._kept

    def prune(self, keep: int) -> None:
        """Removes all but the newest `keep`: the newest `keep` checkpoints name no others, each names one at most."""
        for key in sorted(self._store.list(f"{self._folder}/"))[: -max(1, keep)]:
            if self._kept is None or self._store.uri_of(key) != self._kept["uri"]:
                self._store.delete(key)

    def load(self, policy: PolicyModel, kept: dict[str, Any] | None, cache: Path) -> None:
        """Restores it beside a restored policy. Raises `StorageError`."""
        if kept is None:
            raise StorageError("the checkpoint names no reference policy, and the objective has a KL term")
        self.wanted = True
        self._kept = {"uri": kept["uri"], "sha256": kept["sha256"]}
        self.model = _frozen(policy)
        tensors = read_tensors(self._store.fetch(kept["uri"], kept["sha256"], cache))
        with torch.no_grad():
            for name, tensor in self.model.named_tensors().items():
                tensor.copy_(tensors[name])


def _frozen(policy: PolicyModel) -> PolicyModel:
    twin = PolicyModel(copy.deepcopy(policy.model).eval().requires_grad_(False), policy.served)
    twin.packs, twin.logit_bytes = policy.packs, policy.logit_bytes
    return twin
