"""How `torch.distributed.checkpoint` reaches the object store: one safetensors file a rank, and the index.

Invariant: every file is written and hashed in one pass and appears whole; a reader checks the digest of every file
that it needs before it changes a tensor.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    LoadPlanner,
    ReadItem,
    SavePlan,
    SavePlanner,
    WriteItem,
)
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from services.learner.manifest import StoredFile
from services.learner.sharded.index import Index, Part, index_of, part_key
from services.learner.tensorfile import store_tensors
from shared.storage import ObjectStore


@dataclass(frozen=True, slots=True)
class _Written:
    """Travels from every rank to the one that writes the index."""

    part: Part
    file: StoredFile


def index_name(name: str) -> str:
    return f"{name}.index.json"


def shard_name(name: str, rank: int, ranks: int) -> str:
    return f"{name}-{rank:05d}-of-{ranks:05d}.safetensors"


class ShardWriter(StorageWriter):
    """`files` is complete on the coordinator once the save has returned."""

    def __init__(self, store: ObjectStore, folder: str, name: str, *, rank: int, ranks: int) -> None:
        self._store = store
        self._folder = folder
        self._name = name
        self._shard = shard_name(name, rank, ranks)
        self.files: dict[str, StoredFile] = {}

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        tensors = {_key(item): _resolved(planner, item) for item in plan.items}
        done: Future[list[WriteResult]] = Future()
        done.set_result(self._write(plan.items, tensors) if tensors else [])
        return done

    def _write(self, items: list[WriteItem], tensors: dict[str, Tensor]) -> list[WriteResult]:
        written = store_tensors(self._store, f"{self._folder}/{self._shard}", tensors)
        file = StoredFile(written.sha256, written.size_bytes)
        results = []
        for item in items:
            tensor = tensors[_key(item)]
            part = Part(item.index.fqn, _offsets(item), tuple(tensor.shape), self._shard)
            size = tensor.numel() * tensor.element_size()
            results.append(WriteResult(item.index, size, _Written(part, file)))
        return results

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        told: list[_Written] = [result.storage_data for of_rank in results for result in of_rank]
        body = index_of(metadata, [one.part for one in told]).to_json()
        stored = self._store.put_bytes(f"{self._folder}/{index_name(self._name)}", body)
        self.files = {one.part.file: one.file for one in told}
        self.files[index_name(self._name)] = StoredFile(stored.sha256, stored.size_bytes)

    # The rest of the protocol: the place is known from the beginning, and plans are taken as they are.

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        self.files = {}

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None: ...

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        return plans

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return True


class ShardReader(StorageReader):
    """`fetch` gives a file by its name, its digest checked; of files that a rank's plan does not need nobody asks."""

    def __init__(self, index: Index, fetch: Callable[[str], Path]) -> None:
        self._index = index
        self._fetch = fetch
        self._places: dict[Any, Part] = {}

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        return self._index.to_metadata()

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        self._places = metadata.storage_data

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        wanted: dict[str, list[ReadItem]] = {}
        for item in plan.items:
            wanted.setdefault(self._places[item.storage_index].file, []).append(item)
        paths = {file: self._fetch(file) for file in wanted}
        for file, items in wanted.items():
            with safe_open(paths[file], framework="pt") as source:
                for item in items:
                    target = planner.resolve_tensor(item).detach()
                    target.copy_(_slice(source, self._places[item.storage_index].key, item))
                    planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    # The rest of the protocol, as in the writer.

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None: ...

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return True


def _offsets(item: WriteItem) -> tuple[int, ...]:
    return tuple(item.index.offset or ())


def _key(item: WriteItem) -> str:
    return part_key(item.index.fqn, _offsets(item))


def _resolved(planner: SavePlanner, item: WriteItem) -> Tensor:
    found = planner.resolve_data(item)
    if not isinstance(found, Tensor):
        raise TypeError(f"{item.index.fqn} is no tensor: sharded files hold nothing else")
    return found.detach()


def _slice(source: Any, key: str, item: ReadItem) -> Tensor:
    if not item.lengths:
        whole: Tensor = source.get_tensor(key)
        return whole
    cut = tuple(
        slice(begin, begin + length) for begin, length in zip(item.storage_offsets, item.lengths, strict=True)
    )
    part: Tensor = source.get_slice(key)[cut]
    return part.reshape(torch.Size(item.lengths))
