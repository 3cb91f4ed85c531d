"""Safetensors files as words: names, types, and the bits of each tensor, mapped from the disk.

Invariant: nothing is interpreted. A tensor is an array of unsigned words as wide as its elements, so two versions are
equal exactly if their bits are, and no library of tensors is needed to compare or patch them.

Format: 8 bytes little-endian length of a JSON header, the header, the tensors one after another
(https://github.com/huggingface/safetensors#format).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shared.errors import StorageError

Words = NDArray[Any]
"""uint8, uint16, uint32 or uint64, one dimension."""

WIDTHS = {
    "BF16": 2,
    "F16": 2,
    "F32": 4,
    "F64": 8,
    "I64": 8,
    "I32": 4,
    "U8": 1,
    "BOOL": 1,
}
"""Bytes of an element."""
_PREFIX = 8
_LONGEST_HEADER = 100_000_000


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """begin, end: bytes after the header."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def width(self) -> int:
        return WIDTHS[self.dtype]


class WeightsFile:
    """A file of weights, opened for reading. Arrays stay good as long as they are referred to."""

    def __init__(self, path: Path) -> None:
        """Raises `StorageError` for a file that is not there, cut short, or none of this format."""
        self.path = path
        try:
            with path.open("rb") as source:
                (length,) = struct.unpack("<Q", source.read(_PREFIX))
                if length > _LONGEST_HEADER:
                    raise ValueError(f"a header of {length:,} bytes")
                self.header = struct.pack("<Q", length) + source.read(length)
            table: dict[str, Any] = json.loads(self.header[_PREFIX:])
            self.metadata: dict[str, str] = table.pop("__metadata__", {})
            self.tensors = {place.name: place for place in _places(table)}
            self._bytes: NDArray[np.uint8] = np.memmap(path, dtype=np.uint8, mode="r")
            wanted = len(self.header) + max((place.end for place in self.tensors.values()), default=0)
            if len(self._bytes) != wanted:
                raise ValueError(f"{len(self._bytes):,} bytes, its header tells of {wanted:,}")
        except (OSError, ValueError, KeyError, TypeError, struct.error) as error:
            raise StorageError(f"{path} is no readable safetensors file: {error}") from error

    def words(self, name: str) -> Words:
        """The elements of a tensor as unsigned words, mapped from the disk."""
        place = self.tensors[name]
        start = len(self.header)
        return self._bytes[start + place.begin : start + place.end].view(f"<u{place.width}")


def header_of(tensors: Mapping[str, tuple[str, tuple[int, ...], int]], metadata: Mapping[str, str]) -> bytes:
    """The beginning of a file. tensors: (dtype, shape, bytes) by name, in the order in which they follow."""
    table: dict[str, object] = {"__metadata__": dict(metadata)}
    at = 0
    for name, (dtype, shape, size) in tensors.items():
        table[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    body = json.dumps(table, separators=(",", ":")).encode()
    body += b" " * (-len(body) % _PREFIX)
    return struct.pack("<Q", len(body)) + body


def _places(table: Mapping[str, Any]) -> Iterator[TensorPlace]:
    """In the order of their bytes, which must lie one after another."""
    at = 0
    for name, entry in sorted(table.items(), key=lambda item: item[1]["data_offsets"]):
        begin, end = entry["data_offsets"]
        place = TensorPlace(name, entry["dtype"], tuple(entry["shape"]), begin, end)
        if begin != at or end - begin != place.width * int(np.prod(place.shape, dtype=np.int64)):
            raise ValueError(f"tensor {name!r} does not lie where its shape says")
        at = end
        yield place
