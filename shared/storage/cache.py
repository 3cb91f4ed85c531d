"""Large objects on this machine's disk, by digest, shared by the processes that are given one folder.

Invariant: a name holds the bytes of its digest or is not there; what a process holds is removed by nobody; a process
that dies holds nothing any more. Apart from what is held, the folder has at most `limit_bytes` after a `tidy`.

Held means: a shared flock on the file itself. Making and removing go under the digest's own lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable
from pathlib import Path

from shared.errors import DigestMismatchError, StorageError
from shared.storage.local import PARTIAL_SUFFIX, digest_file
from shared.storage.locks import LOCK_SUFFIX, is_at, locked, locked_if_free
from shared.storage.store import ObjectStore


class ObjectCache:
    """Blocking; of one thread at a time."""

    def __init__(self, folder: Path, limit_bytes: int = 0) -> None:
        """`limit_bytes` 0: nothing is kept but what is held."""
        self.folder = folder
        self._limit = limit_bytes
        self._held: dict[Path, int] = {}

    def fetch(self, store: ObjectStore, uri: str, sha256: str) -> Path:
        """As `ObjectStore.fetch`, and held where it lies in this folder."""
        while True:
            path = store.fetch(uri, sha256, self.folder)
            if path.parent != self.folder or self._hold(path):
                return path

    def make(self, sha256: str, build: Callable[[Path], str]) -> Path:
        """The file of this digest, held: the one that is there, or the one that `build(scratch)` writes.

        `build` gives the digest of what it wrote. Raises `DigestMismatchError` where it is another, and what `build`
        raises; nothing is left then.
        """
        path = self.folder / sha256
        scratch = path.with_name(f"{sha256}.made{PARTIAL_SUFFIX}")
        while True:
            with locked(path.with_name(sha256 + LOCK_SUFFIX)):
                if not (path.is_file() and digest_file(path)[0] == sha256):
                    try:
                        made = build(scratch)
                        if made != sha256:
                            raise DigestMismatchError(
                                f"{path}: it was made as {made}, announced was {sha256}"
                            )
                        scratch.replace(path)
                    finally:
                        scratch.unlink(missing_ok=True)
                if self._hold(path):
                    return path

    def find(self, sha256: str) -> Path | None:
        """What this folder has under a digest, held; what lies there is as good as whoever left it made it."""
        path = self.folder / sha256
        return path if self._hold(path) else None

    def let_go(self, path: Path) -> None:
        """Others may remove it from now on. What is not held: nothing happens."""
        descriptor = self._held.pop(path, None)
        if descriptor is not None:
            os.close(descriptor)

    def keep_only(self, *paths: Path) -> None:
        """Lets go of everything else."""
        for path in set(self._held) - set(paths):
            self.let_go(path)

    def forget(self, sha256: str) -> None:
        """Removes what this folder has of a digest, complete or partial, so that it is fetched afresh."""
        self.let_go(self.folder / sha256)
        with locked_if_free(self.folder / (sha256 + LOCK_SUFFIX)) as free:
            if free:
                for name in (sha256, sha256 + PARTIAL_SUFFIX):
                    with contextlib.suppress(OSError):
                        (self.folder / name).unlink(missing_ok=True)

    def tidy(self) -> list[str]:
        """Removes what was not used for longest until the rest fits; the names of what was removed."""
        files = []
        for path in self.folder.iterdir() if self.folder.is_dir() else ():
            if path.suffix != LOCK_SUFFIX and path not in self._held:
                with contextlib.suppress(OSError):
                    about = path.stat()
                    files.append((about.st_mtime, about.st_size, path))
        total = sum(size for _, size, _ in files)
        removed = []
        for _, size, path in sorted(files):
            if total <= self._limit:
                break
            if self._remove(path):
                removed.append(path.name)
                total -= size
        return removed

    def close(self) -> None:
        """Lets go of everything."""
        self.keep_only()

    def _hold(self, path: Path) -> bool:
        """False where somebody removed it meanwhile."""
        if path in self._held and is_at(self._held[path], path):
            return True
        self.let_go(path)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise StorageError(f"{path} cannot be read: {error.strerror or error}") from error
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        if not is_at(descriptor, path):
            os.close(descriptor)
            return False
        with contextlib.suppress(OSError):
            os.utime(path)  # the time of its last use
        self._held[path] = descriptor
        return True

    def _remove(self, path: Path) -> bool:
        """Unless somebody makes, fetches or holds it."""
        with locked_if_free(path.with_name(path.name.split(".")[0] + LOCK_SUFFIX)) as free:
            if not free:
                return False
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                return False
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink(missing_ok=True)
            except OSError:
                return False
            finally:
                os.close(descriptor)
        return True
