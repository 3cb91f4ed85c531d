"""A lock that processes of one machine share, by the name of a file.

Invariant: at most one holder at a time, threads of one process included; a holder that dies lets go by that. The
file is removed by its last holder, and whoever had waited on the removed file takes the lock anew.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from shared.errors import StorageError

LOCK_SUFFIX = ".lock"


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds the lock `path`, after waiting for it. Raises `StorageError` where the file cannot be made."""
    descriptor = _take(path, fcntl.LOCK_EX)
    try:
        yield
    finally:
        _let_go(path, descriptor)


@contextlib.contextmanager
def locked_if_free(path: Path) -> Iterator[bool]:
    """Whether the lock could be had at once; it is held inside then."""
    try:
        descriptor = _take(path, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        yield False
        return
    try:
        yield True
    finally:
        _let_go(path, descriptor)


def _take(path: Path, how: int) -> int:
    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise StorageError(f"{path}: the lock cannot be made: {error.strerror or error}") from error
        try:
            fcntl.flock(descriptor, how)
        except BaseException:
            os.close(descriptor)
            raise
        if is_at(descriptor, path):
            return descriptor
        os.close(descriptor)


def _let_go(path: Path, descriptor: int) -> None:
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)
    os.close(descriptor)


def is_at(descriptor: int, path: Path) -> bool:
    """Whether the open file still has this name."""
    try:
        there = path.stat()
    except OSError:
        return False
    mine = os.fstat(descriptor)
    return (mine.st_dev, mine.st_ino) == (there.st_dev, there.st_ino)
