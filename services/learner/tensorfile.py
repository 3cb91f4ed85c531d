"""Safetensors files, written and hashed in one pass.

Invariant: the name appears when every byte is on the disk; a failed write leaves nothing. The digests are of the
bytes as they went out, so nothing is read back. Format: 8 bytes little-endian length of a JSON header, the header,
the tensors one after another (https://github.com/huggingface/safetensors#format).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from shared.contracts import TensorEntry
from shared.errors import StorageError
from shared.storage import ObjectStore
from shared.storage.local import PARTIAL_SUFFIX, disk_error, sync_folder

_CHUNK_BYTES = 16 * 1024 * 1024
_ALIGNMENT = 8
_NAMES: dict[torch.dtype, str] = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
DTYPES = {name: dtype for dtype, name in _NAMES.items()}


def dtype_name(dtype: torch.dtype) -> str:
    """As the format writes it."""
    return _NAMES[dtype]


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """sha256 of the whole file, its size, and each tensor's entry where they were asked for."""

    sha256: str
    size_bytes: int
    tensors: tuple[TensorEntry, ...]


def write_tensors(
    path: Path,
    tensors: Mapping[str, Tensor],
    *,
    entries: bool = False,
    metadata: Mapping[str, str] = MappingProxyType({}),
) -> WrittenFile:
    """Writes `tensors` to `path`, synced. `entries`: also the digest of every tensor's bytes.

    Raises `StorageError` (disk full: path, bytes wanted, mend); the name then holds what it held before.
    """
    header = _header(tensors, metadata)
    wanted = len(header) + sum(_size(tensor) for tensor in tensors.values())
    partial = path.parent / f".{path.name}.{uuid.uuid4().hex}{PARTIAL_SUFFIX}"
    whole = hashlib.sha256(header)
    found: list[TensorEntry] = []
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb", buffering=0) as target, ThreadPoolExecutor(2) as hashers:
            target.write(header)
            for name, tensor in tensors.items():
                part = hashlib.sha256()
                for chunk in _chunks(tensor):
                    # Hashing releases the interpreter, so both digests and the write go on side by side.
                    pending = [hashers.submit(whole.update, chunk)]
                    if entries:
                        pending.append(hashers.submit(part.update, chunk))
                    _write_all(target.fileno(), chunk)
                    for future in pending:
                        future.result()
                if entries:
                    found.append(
                        TensorEntry(
                            name=name,
                            dtype=_NAMES[tensor.dtype],
                            shape=tuple(tensor.shape),
                            sha256=part.hexdigest(),
                        )
                    )
            os.fsync(target.fileno())
        partial.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        raise disk_error(path, error, wanted) from error
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
    return WrittenFile(whole.hexdigest(), wanted, tuple(found))


def store_tensors(
    store: ObjectStore,
    key: str,
    tensors: Mapping[str, Tensor],
    *,
    entries: bool = False,
    metadata: Mapping[str, str] = MappingProxyType({}),
) -> WrittenFile:
    """As `write_tensors`, into an object store: in place where it is local, by way of a scratch file elsewhere."""
    place = store.local_path(key)
    if place is not None:
        return write_tensors(place, tensors, entries=entries, metadata=metadata)
    with tempfile.TemporaryDirectory(prefix="temper-tensors-") as folder:
        scratch = Path(folder) / "tensors.safetensors"
        written = write_tensors(scratch, tensors, entries=entries, metadata=metadata)
        store.put_file(key, scratch)
    return written


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Every tensor of a file, mapped from the disk. Raises `StorageError` for a file that is none."""
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise StorageError(f"{path} is no readable safetensors file: {error}") from error


def _size(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _header(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    table: dict[str, object] = {"__metadata__": {"format": "pt", **metadata}}
    at = 0
    for name, tensor in tensors.items():
        end = at + _size(tensor)
        table[name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [at, end],
        }
        at = end
    body = json.dumps(table, separators=(",", ":")).encode()
    body += b" " * (-len(body) % _ALIGNMENT)
    return len(body).to_bytes(8, "little") + body


def _chunks(tensor: Tensor) -> Iterator[memoryview]:
    """The tensor's bytes, little-endian, without a copy where it lies in memory in order."""
    flat = tensor.detach().contiguous().reshape(-1).cpu()
    if flat.numel() == 0:
        return
    view = flat.view(torch.uint8).numpy().data
    for at in range(0, len(view), _CHUNK_BYTES):
        yield view[at : at + _CHUNK_BYTES]


def _write_all(descriptor: int, chunk: memoryview) -> None:
    while len(chunk):
        chunk = chunk[os.write(descriptor, chunk) :]
