"""What changed since the version before, as an object beside the full weights.

Invariant: a chain that is announced leads from its first base to the announced weights, object by object, and its
objects stay until a later chain no longer needs them. The full weights are always in the checkpoint: a newcomer, an
engine that missed the base and a run that is resumed need no chain. What that costs in storage is small (SmolLM2 in
bfloat16: 269 MB beside the 1.6 GB of masters and moments that a checkpoint holds anyway); what a delta saves is paid
for by every rollout process.

The version before is kept in memory as words of the served dtype (2 bytes a weight of bfloat16).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from shared.contracts import DeltaRef, Policy, WeightsRef
from shared.storage import ObjectStore
from shared.weights.delta import TensorChange, Versions, delta_bytes
from shared.weights.layout import Words
from shared.weights.settings import PublishingSettings
from shared.weights.sparse import encode

_THREADS = 8
"""At most. Comparing and deflating release the interpreter, one tensor a thread."""


@dataclass(frozen=True, slots=True)
class _Base:
    """The version before."""

    version: int
    stage_index: int
    sha256: str
    words: dict[str, Words]


class DeltaPublisher:
    """Of one run. Blocking: call it in a thread."""

    def __init__(
        self, store: ObjectStore, run_id: str, settings: PublishingSettings, served: torch.dtype
    ) -> None:
        self._store = store
        self._folder = f"deltas/{run_id}"
        self._settings = settings
        self._base: _Base | None = None
        self._chain: tuple[DeltaRef, ...] = ()
        wanted = settings.deltas == "always" or (
            settings.deltas == "auto" and served is torch.bfloat16 and not store.is_local
        )
        self.wanted = wanted and settings.full_every > 1

    def publish(
        self, version: int, stage_index: int, tensors: Mapping[str, Tensor], weights: WeightsRef
    ) -> tuple[DeltaRef, ...]:
        """The chain to announce with `weights`, which are `tensors`; its last object is written here.

        Raises `StorageError`.
        """
        if not self.wanted:
            return ()
        words = {name: words_of(tensor) for name, tensor in tensors.items()}
        base = self._base
        digests = {entry.name: entry.sha256 for entry in weights.tensors}
        chain: tuple[DeltaRef, ...] = ()
        try:
            if base is not None and self._may_follow(base, stage_index, words):
                most = int(self._settings.most_share * weights.size_bytes)
                changes = _changes(base, words, digests, most)
                delta = None if changes is None else self._write(base, version, weights, changes, most)
                chain = () if delta is None else (*self._chain, delta)
        except BaseException:
            self._base, self._chain = None, ()
            raise
        self._base = _kept(base, version, stage_index, weights.sha256, words)
        self._chain = chain
        return chain

    def resume(self, policy: Policy, tensors: Mapping[str, Tensor]) -> None:
        """Goes on from a checkpoint's announcement and its weights."""
        if self.wanted:
            words = {name: words_of(tensor) for name, tensor in tensors.items()}
            self._base = _kept(None, policy.version, policy.stage_index, policy.weights.sha256, words)
            self._chain = policy.deltas

    def prune(self) -> list[str]:
        """Once a newer policy is announced: removes objects of earlier chains; their keys."""
        if not self.wanted:
            return []
        wanted = {delta.uri for delta in self._chain}
        gone = [key for key in self._store.list(f"{self._folder}/") if self._store.uri_of(key) not in wanted]
        for key in gone:
            self._store.delete(key)
        return gone

    def _may_follow(self, base: _Base, stage_index: int, words: Mapping[str, Words]) -> bool:
        alike = {name: (part.shape, part.dtype) for name, part in words.items()} == {
            name: (part.shape, part.dtype) for name, part in base.words.items()
        }
        return alike and base.stage_index == stage_index and len(self._chain) + 1 < self._settings.full_every

    def _write(
        self, base: _Base, version: int, weights: WeightsRef, changes: Mapping[str, TensorChange], most: int
    ) -> DeltaRef | None:
        versions = Versions(base.version, base.sha256, version, weights.sha256)
        pieces, size = delta_bytes(versions, changes)
        if size > most:
            return None
        stored = self._store.put_chunks(f"{self._folder}/{version:08d}.safetensors", pieces, size)
        return DeltaRef(
            version=version,
            base_version=base.version,
            base_sha256=base.sha256,
            result_sha256=weights.sha256,
            uri=stored.uri,
            sha256=stored.sha256,
            size_bytes=size,
        )


def _changes(
    base: _Base, words: Mapping[str, Words], digests: Mapping[str, str], most: int
) -> dict[str, TensorChange] | None:
    """None where they are more than `most` bytes."""
    changes: dict[str, TensorChange] = {}
    stored = 0
    with ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1)) as pool:
        encoded = pool.map(lambda name: encode(base.words[name], words[name]), words)
        for name, change in zip(words, encoded, strict=True):
            if change is not None:
                changes[name] = TensorChange(change, digests[name])
                stored += change.stored_bytes
            if stored > most:
                pool.shutdown(cancel_futures=True)
                return None
    return changes


def words_of(tensor: Tensor) -> Words:
    """Its elements as unsigned words, little-endian; no copy where it lies in this machine's memory in order."""
    flat = tensor.detach().contiguous().reshape(-1).cpu()
    if not flat.numel():
        return np.zeros(0, dtype=f"<u{tensor.element_size()}")
    words: Words = flat.view(torch.uint8).numpy().view(f"<u{tensor.element_size()}")
    return words


def _kept(
    before: _Base | None, version: int, stage_index: int, sha256: str, words: Mapping[str, Words]
) -> _Base:
    """A copy of `words`, in the memory of the version before it where that fits."""
    own = before.words if before is not None else {}
    kept: dict[str, Words] = {}
    for name, part in words.items():
        place = own.get(name)
        if place is None or place.shape != part.shape or place.dtype != part.dtype:
            kept[name] = part.copy()
        else:
            np.copyto(place, part)
            kept[name] = place
    return _Base(version, stage_index, sha256, kept)
