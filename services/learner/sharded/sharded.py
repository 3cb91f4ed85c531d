"""Save, load and read sharded tensors: the functions that trainers of any number of ranks call.

Invariant: `group` says who takes part: None is this process alone, also where `torch.distributed` is initialised;
otherwise every rank of the group calls, and a failure of one is raised on all.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from services.learner.distributed.joined import is_loss, lost
from services.learner.manifest import StoredFile
from services.learner.sharded.index import Index, TensorKind, index_of_file, read_index
from services.learner.sharded.storage import ShardReader, ShardWriter, index_name
from shared.errors import StorageError
from shared.storage import ObjectStore


def save_sharded(
    store: ObjectStore,
    folder: str,
    name: str,
    tensors: Mapping[str, Tensor],
    group: dist.ProcessGroup | None = None,
) -> dict[str, StoredFile]:
    """Writes `<folder>/<name>-<rank>-of-<ranks>.safetensors` and `<name>.index.json`; the files by name.

    A `DTensor` is written as its shards, each by the rank that holds it; a plain tensor once, by one rank, and is the
    same on all. Only rank 0 of the group is told the files: it writes the manifest. In a thread of its own while
    steps are taken, `group` must be one that the steps do not use, and the tensors copies.

    Raises `StorageError`, and `RankLostError` where a rank is gone.
    """
    rank, ranks = (0, 1) if group is None else (dist.get_rank(group), dist.get_world_size(group))
    writer = ShardWriter(store, folder, name, rank=rank, ranks=ranks)
    with _plain_failures(group):
        save(
            dict(tensors),
            storage_writer=writer,
            planner=DefaultSavePlanner(flatten_state_dict=False),
            process_group=group,
            no_dist=group is None,
        )
    return writer.files


@dataclass(frozen=True, slots=True)
class SavedShards:
    """Where sharded tensors lie. `digests`: sha256 by file name, of the manifest."""

    store: ObjectStore
    folder: str
    name: str
    digests: Mapping[str, str]
    cache: Path
    """Where what is not on this machine's disk is put."""

    def kinds(self) -> Mapping[str, TensorKind]:
        """dtype and shape of every tensor, without reading one. Raises `StorageError`."""
        return self.index().tensors

    def index(self) -> Index:
        """Raises `StorageError`. Format 1 has one file and no index: what it holds is in the file's own header."""
        name, whole = index_name(self.name), f"{self.name}.safetensors"
        if name not in self.digests and whole in self.digests:
            return index_of_file(self.fetch(whole))
        uri = self.store.uri_of(f"{self.folder}/{name}")
        return read_index(self.store.get_bytes(uri, self._digest(name)), uri)

    def fetch(self, file: str) -> Path:
        """Its digest checked. Raises `StorageError`."""
        return self.store.fetch(self.store.uri_of(f"{self.folder}/{file}"), self._digest(file), self.cache)

    def _digest(self, file: str) -> str:
        try:
            return self.digests[file]
        except KeyError as error:
            raise StorageError(
                f"{self.folder}: its manifest does not name {file}: restore it from a copy"
            ) from error


def load_sharded(
    saved: SavedShards, tensors: Mapping[str, Tensor], group: dist.ProcessGroup | None = None
) -> None:
    """Fills `tensors` in place, a `DTensor` with its own shards.

    Raises `StorageError`: damaged, gone, or without one of the names; no tensor is changed by a damaged file. Raises
    `RankLostError` where a rank is gone.
    """
    index = saved.index()
    kinds = index.tensors
    for name, tensor in tensors.items():
        kind = kinds.get(name)
        if kind is None or kind.shape != tuple(tensor.shape):
            found = "no such tensor" if kind is None else f"it with shape {list(kind.shape)}"
            raise StorageError(
                f"{saved.store.uri_of(saved.folder)} holds {found}: {name} of shape {list(tensor.shape)} is "
                "wanted; it is of another model"
            )
    if not tensors and group is None:
        return
    with _plain_failures(group):
        load(
            dict(tensors),
            storage_reader=ShardReader(index, saved.fetch),
            planner=DefaultLoadPlanner(flatten_state_dict=False),
            process_group=group,
            no_dist=group is None,
        )


def read_sharded(saved: SavedShards, prefix: str = "") -> dict[str, Tensor]:
    """Every tensor whose name begins with `prefix` whole, in memory of this process. Raises as `load_sharded`."""
    kinds = {name: kind for name, kind in saved.kinds().items() if name.startswith(prefix)}
    tensors = {name: torch.empty(kind.shape, dtype=kind.dtype) for name, kind in kinds.items()}
    load_sharded(saved, tensors)
    return tensors


@contextlib.contextmanager
def _plain_failures(group: dist.ProcessGroup | None) -> Iterator[None]:
    """What failed on the lowest rank, as itself: the library wraps it with a traceback a rank. A rank that is gone is
    `RankLostError`. It also warns whenever a process works alone, which is what was asked for."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            yield
    except CheckpointException as error:
        failures: dict[int, Any] = error.failures
        raise failures[min(failures)][0] from None
    except (dist.DistError, RuntimeError) as error:
        if group is None or not is_loss(error):
            raise
        raise lost(dist.get_rank(), error) from error
