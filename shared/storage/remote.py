"""An object store elsewhere: what it says when it fails, downloads that go on, and how long its absence is borne.

Invariant: whatever a client of a remote store raises becomes an `UnreachableError` that names the object, except that
an object is not there, which no waiting mends.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import structlog

from shared.errors import StorageError, TemperError, UnreachableError
from shared.plain_errors import one_line
from shared.storage.local import CHUNK_BYTES, disk_error

_log = structlog.get_logger(__name__)
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 5.0

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Patience:
    """Work that is done again while the store does not answer, for at most `seconds`.

    `stop` is asked between two tries, and between two pieces of a download: what is there of it stays for the next.
    """

    seconds: float = 0.0
    stop: Callable[[], bool] = lambda: False
    now: Callable[[], float] = time.monotonic
    wait: Callable[[float], None] = time.sleep

    def through(self, work: Callable[[], R]) -> R:
        """What `work` gives in the end. Raises what it raises, `UnreachableError` once patience is over."""
        ends = self.now() + self.seconds
        pause = _FIRST_PAUSE_S
        while True:
            try:
                return work()
            except UnreachableError as error:
                left = ends - self.now()
                if left <= 0 or self.stop():
                    raise
                if pause == _FIRST_PAUSE_S:
                    _log.warning("the object store is waited for", error=str(error), patience_s=self.seconds)
            self.wait(min(pause, left))
            pause = min(2 * pause, _LONGEST_PAUSE_S)


@contextlib.contextmanager
def told_as_ours(uri: str, *, writing: bool = False) -> Iterator[None]:
    """Errors of a client of a remote store as an `UnreachableError`; a missing object as a `StorageError`."""
    try:
        yield
    except FileNotFoundError as error:
        if writing:
            raise StorageError(
                f"{uri} cannot be written: its bucket is not there; make it, or correct storage.uri"
            ) from error
        raise no_such_object(uri) from error
    except (TemperError, MemoryError):
        raise
    except Exception as error:  # clients of remote stores have errors of their own
        if isinstance(error, PermissionError) or "credential" in type(error).__name__.lower():
            raise UnreachableError(
                f"{uri} is refused: {one_line(error)}; see the credentials of this process (of S3: AWS_ACCESS_KEY_ID, "
                "AWS_SECRET_ACCESS_KEY, AWS_ENDPOINT_URL) and what they are allowed"
            ) from error
        raise UnreachableError(
            f"{uri} cannot be reached: {one_line(error)}; is the object store there?"
        ) from error


def no_such_object(uri: str) -> StorageError:
    return StorageError(f"{uri}: no such object; it was deleted, or this process looks at another store")


def modified_s(uri: str, about: Mapping[str, Any]) -> float:
    """When an object was last written, from what fsspec's file systems tell of it, each under a name of its own:
    seconds since the epoch. Raises `StorageError` where none is known."""
    for name in ("mtime", "LastModified", "last_modified", "updated", "created"):
        told = about.get(name)
        if isinstance(told, str):
            with contextlib.suppress(ValueError):
                told = datetime.fromisoformat(told)
        if isinstance(told, datetime):
            return (told if told.tzinfo else told.replace(tzinfo=UTC)).timestamp()
        if isinstance(told, int | float):
            return float(told)
    raise StorageError(
        f"{uri}: its store does not say when it was written: expire such objects by the store's own rules"
    )


def download(file_system: Any, path: str, uri: str, partial: Path, stop: Callable[[], bool]) -> None:
    """Appends what is missing of `path` to `partial`. Raises `StorageError`, `UnreachableError` among them (also where
    it was stopped)."""
    try:
        partial.parent.mkdir(parents=True, exist_ok=True)
        target = partial.open("ab")
    except OSError as error:
        raise disk_error(partial, error, 0) from error
    with target, told_as_ours(uri):
        have, size = target.tell(), int(file_system.size(path))
        if have > size:
            target.truncate(0)
            have = 0
        with file_system.open(path, "rb") as source:
            source.seek(have)
            while chunk := source.read(CHUNK_BYTES):
                _append(target, chunk, partial)
                if stop():
                    raise UnreachableError(f"{uri} is not fetched to its end: this process stops")


def _append(target: BinaryIO, chunk: bytes, partial: Path) -> None:
    try:
        target.write(chunk)
        target.flush()
    except OSError as error:
        raise disk_error(partial, error, len(chunk)) from error
