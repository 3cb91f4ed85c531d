"""A remote file system that is away, or breaks off, when told to: files of a folder, behind another protocol.

Its errors are no `OSError`, as those of most clients of remote stores are not.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fsspec import register_implementation
from fsspec.implementations.local import LocalFileSystem

from shared.storage import ObjectStore


class AwayError(Exception):
    """Not an `OSError`."""


class ShakyFileSystem(LocalFileSystem):  # type: ignore[misc]
    protocol = "shaky"
    away = False
    breaks_after = 0
    """Bytes of each opened file; 0: never."""
    read_bytes = 0
    """Read in all."""

    def size(self, path: str) -> Any:
        self._answer()
        return super().size(path)

    def info(self, path: str, **named: Any) -> Any:
        self._answer()
        return super().info(path, **named)

    def isfile(self, path: str) -> bool:
        """As fsspec's remote clients have it: whatever goes wrong means that there is no file."""
        try:
            return bool(self.info(path)["type"] == "file")
        except Exception:
            return False

    def open(self, path: str, mode: str = "rb", **named: Any) -> Any:
        self._answer()
        if "w" in mode:
            self.makedirs(self._parent(path), exist_ok=True)
        opened = super().open(path, mode, **named)
        return _Breaking(opened) if "r" in mode else opened

    def cat_file(self, path: str, *args: Any, **named: Any) -> Any:
        with self.open(path) as source:
            return b"".join(iter(lambda: source.read(1 << 20), b""))

    @staticmethod
    def _answer() -> None:
        if ShakyFileSystem.away:
            raise AwayError("no route to host")


class _Breaking:
    def __init__(self, opened: Any) -> None:
        self._opened = opened
        self._left = ShakyFileSystem.breaks_after or 1 << 60

    def __enter__(self) -> _Breaking:
        return self

    def __exit__(self, *error: object) -> None:
        self._opened.close()

    def seek(self, at: int) -> None:
        self._opened.seek(at)

    def read(self, size: int) -> bytes:
        if not self._left or ShakyFileSystem.away:
            raise AwayError("connection reset")
        got: bytes = self._opened.read(min(size, self._left))
        self._left -= len(got)
        ShakyFileSystem.read_bytes += len(got)
        return got


@contextmanager
def shaky_store(folder: Path) -> Iterator[ObjectStore]:
    register_implementation("shaky", ShakyFileSystem, clobber=True)
    ShakyFileSystem.read_bytes = 0
    try:
        yield ObjectStore(f"shaky://{folder}/far")
    finally:
        ShakyFileSystem.away, ShakyFileSystem.breaks_after = False, 0
