"""The index of sharded tensors: which file holds which part of which tensor.

Invariant: it is JSON and says all that a reader needs; nothing is unpickled (the metadata file that
`torch.distributed.checkpoint` writes by itself is a pickle, and a checkpoint may come from somebody else).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from services.learner.tensorfile import DTYPES, dtype_name
from shared.errors import StorageError

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Part:
    """One chunk of one tensor: where it begins in the tensor, and where it lies."""

    name: str
    offsets: tuple[int, ...]
    shape: tuple[int, ...]
    file: str

    @property
    def key(self) -> str:
        """Its name in its file: the tensor's own where it begins at the tensor's beginning."""
        return part_key(self.name, self.offsets)


@dataclass(frozen=True, slots=True)
class TensorKind:
    dtype: torch.dtype
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Index:
    tensors: Mapping[str, TensorKind]
    parts: tuple[Part, ...]

    def to_json(self) -> bytes:
        parts: dict[str, list[dict[str, Any]]] = {name: [] for name in self.tensors}
        for part in self.parts:
            parts[part.name].append({"offsets": part.offsets, "shape": part.shape, "file": part.file})
        tensors = {
            name: {"dtype": dtype_name(kind.dtype), "shape": kind.shape, "parts": parts[name]}
            for name, kind in self.tensors.items()
        }
        return json.dumps({"format": FORMAT, "tensors": tensors}, separators=(",", ":")).encode()

    def to_metadata(self) -> Metadata:
        """As the planners of `torch.distributed.checkpoint` read it; `storage_data` leads to the parts."""
        chunks: dict[str, list[ChunkStorageMetadata]] = {name: [] for name in self.tensors}
        places: dict[MetadataIndex, Part] = {}
        for part in self.parts:
            offsets = torch.Size(part.offsets)
            chunks[part.name].append(ChunkStorageMetadata(offsets, torch.Size(part.shape)))
            places[MetadataIndex(part.name, offsets)] = part
        tensors = {
            name: TensorStorageMetadata(TensorProperties(kind.dtype), torch.Size(kind.shape), chunks[name])
            for name, kind in self.tensors.items()
        }
        return Metadata(state_dict_metadata=dict(tensors), storage_data=places)


def part_key(name: str, offsets: Iterable[int]) -> str:
    where = tuple(offsets)
    return f"{name}@{','.join(map(str, where))}" if any(where) else name


def index_of(metadata: Metadata, parts: Iterable[Part]) -> Index:
    """What a save has planned, with where its parts went."""
    tensors = {
        name: TensorKind(entry.properties.dtype, tuple(entry.size))
        for name, entry in metadata.state_dict_metadata.items()
        if isinstance(entry, TensorStorageMetadata)
    }
    return Index(tensors, tuple(sorted(parts, key=lambda part: (part.name, part.offsets))))


def index_of_file(path: Path) -> Index:
    """Of a safetensors file that holds every tensor whole. Raises `StorageError`."""
    tensors = {}
    try:
        with safe_open(path, framework="pt") as source:
            for name in source.keys():  # noqa: SIM118 - it is no mapping
                part = source.get_slice(name)
                tensors[name] = TensorKind(DTYPES[part.get_dtype()], tuple(part.get_shape()))
    except (SafetensorError, OSError, KeyError) as error:
        raise StorageError(f"{path} is no readable safetensors file: {error}") from error
    parts = tuple(Part(name, (0,) * len(kind.shape), kind.shape, path.name) for name, kind in tensors.items())
    return Index(tensors, parts)


def read_index(raw: bytes, where: str) -> Index:
    """Raises `StorageError` for one that is damaged or of another format."""
    try:
        document = json.loads(raw)
        if document["format"] != FORMAT:
            raise StorageError(
                f"{where} has format {document['format']}, this build reads {FORMAT}: use the build that wrote it"
            )
        tensors, parts = {}, []
        for name, entry in document["tensors"].items():
            tensors[name] = TensorKind(DTYPES[entry["dtype"]], tuple(entry["shape"]))
            parts += [
                Part(name, tuple(part["offsets"]), tuple(part["shape"]), part["file"])
                for part in entry["parts"]
            ]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StorageError(
            f"{where} is no index of sharded tensors ({type(error).__name__}: {error}): restore it from a copy"
        ) from error
    return Index(tensors, tuple(parts))
