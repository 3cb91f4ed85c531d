"""Atomic files on a local disk.

Invariant: a name either holds the complete bytes, synced to the disk, or does not exist (or still holds what it
held before). A failed write leaves no partial file behind.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path

from shared.errors import StorageError

CHUNK_BYTES = 4 * 1024 * 1024
PARTIAL_SUFFIX = ".partial"


def read_chunks(path: Path) -> Iterator[bytes]:
    """The file in pieces of `CHUNK_BYTES`, so that a large one is never in memory as a whole."""
    with path.open("rb") as source:
        while chunk := source.read(CHUNK_BYTES):
            yield chunk


def digest_file(path: Path) -> tuple[str, int]:
    """(sha256 in hex, size in bytes) of a file. Raises `StorageError` when it cannot be read."""
    hasher = hashlib.sha256()
    size = 0
    try:
        for chunk in read_chunks(path):
            hasher.update(chunk)
            size += len(chunk)
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror or error}") from error
    return hasher.hexdigest(), size


def write_atomically(path: Path, chunks: Iterable[bytes], wanted_bytes: int | None = None) -> tuple[str, int]:
    """Write, sync and rename; returns (sha256, size).

    `wanted_bytes` only makes the message of a full disk better. Raises `StorageError` on any failure of the disk.
    """
    partial = path.parent / f".{path.name}.{uuid.uuid4().hex}{PARTIAL_SUFFIX}"
    hasher = hashlib.sha256()
    size = 0
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as target:
            for chunk in chunks:
                target.write(chunk)
                hasher.update(chunk)
                size += len(chunk)
            target.flush()
            os.fsync(target.fileno())
        partial.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        raise disk_error(path, error, wanted_bytes if wanted_bytes is not None else size) from error
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
    return hasher.hexdigest(), size


def sync_folder(folder: Path) -> None:
    """Make renames inside `folder` durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def disk_error(path: Path, error: OSError, wanted_bytes: int) -> StorageError:
    """The one-line `StorageError` of a failed write, with what to do about it."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageError(
            f"{path}: the disk is full: {wanted_bytes:,} bytes wanted, {_free_bytes(path):,} free; "
            "make room or point storage.uri elsewhere"
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return StorageError(
            f"{path}: not writable: {error.strerror}; change its permissions or point storage.uri elsewhere"
        )
    return StorageError(f"{path}: {wanted_bytes:,} bytes cannot be written: {error.strerror or error}")


def _free_bytes(path: Path) -> int:
    for place in path.parents:
        with contextlib.suppress(OSError):
            return shutil.disk_usage(place).free
    return 0
