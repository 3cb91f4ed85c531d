"""Objects by key, on any file system that fsspec knows; a local folder by default.

Invariant: whoever reads an object under its announced digest gets exactly the bytes that were announced or a
`DigestMismatchError`; on a local store a key is complete or absent. No large object is held in memory twice.
"""

from __future__ import annotations

import contextlib
import hashlib
import posixpath
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from shared.errors import DigestMismatchError, StorageError
from shared.storage.local import (
    PARTIAL_SUFFIX,
    digest_file,
    disk_error,
    read_chunks,
    write_atomically,
)
from shared.storage.locks import LOCK_SUFFIX, locked
from shared.storage.remote import Patience, download, modified_s, no_such_object, told_as_ours

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class ObjectRef:
    """Where an object is and what it must hash to."""

    uri: str
    sha256: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Stored:
    """An object as the store lists it. `modified_s`: seconds since the epoch, when it was last written."""

    key: str
    size_bytes: int
    modified_s: float


class ObjectStore:
    """Objects under one fsspec URI (`file:///…`, `s3://bucket/prefix`, `memory://…`).

    Blocking: call it in a thread from asyncio. Safe to share between threads.
    """

    def __init__(self, uri: str, patience: Patience | None = None) -> None:
        """`patience`: with a remote store that does not answer. Raises `StorageError` when the URI's protocol is
        unknown or its package is not installed."""
        self._patience = patience or Patience()
        self._file_system, self._root = _open_uri(uri)
        self._is_local = _is_local(self._file_system)
        self.uri = f"file://{self._root}" if self._is_local else uri.rstrip("/")

    def uri_of(self, key: str) -> str:
        return f"{self.uri}/{_checked(key)}"

    @property
    def is_local(self) -> bool:
        """A folder of this machine (or one that is mounted as such)."""
        return self._is_local

    def local_path(self, key: str) -> Path | None:
        """Where a local store keeps `key` (its folder exists afterwards); None on a remote store.

        Lets a large checkpoint be written in place; the writer takes care of completeness itself.
        """
        if not self._is_local:
            return None
        path = Path(self._root) / _checked(key)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise disk_error(path, error, 0) from error
        return path

    def put_bytes(self, key: str, data: bytes) -> ObjectRef:
        """Raises `StorageError` (disk full: path, bytes wanted and the mend are named)."""
        return self._put(key, lambda: (data,), len(data))

    def put_chunks(self, key: str, chunks: Sequence[bytes], size: int) -> ObjectRef:
        """As `put_bytes`, of `size` bytes in pieces."""
        return self._put(key, lambda: chunks, size)

    def put_file(self, key: str, path: Path) -> ObjectRef:
        """Copies in chunks; a file that already lies at `local_path(key)` is only hashed."""
        if self._is_local and Path(path).resolve() == (Path(self._root) / _checked(key)).resolve():
            digest, size = digest_file(Path(path))
            return ObjectRef(self.uri_of(key), digest, size)
        try:
            size = Path(path).stat().st_size
        except OSError as error:
            raise StorageError(f"{path} cannot be read: {error.strerror}") from error
        return self._put(key, lambda: read_chunks(Path(path)), size)

    def get_bytes(self, uri: str, sha256: str | None = None) -> bytes:
        """Raises `StorageError` when it is missing, `DigestMismatchError` when it hashes to something else."""
        file_system, path = _open_uri(uri)

        def read() -> bytes:
            with told_as_ours(uri):
                data: bytes = file_system.cat_file(path)
            return data

        data = self._patience.through(read)
        if sha256:
            _compare(uri, hashlib.sha256(data).hexdigest(), sha256)
        return data

    def fetch(self, uri: str, sha256: str, cache: Path) -> Path:
        """A local file with the object's bytes.

        A local object is its own file, after a digest check. A remote one is downloaded into `cache` under its
        digest; an interrupted download is resumed, and the name appears only when the digest is right. Processes that
        share `cache` wait for each other's download instead of making it twice.
        """
        file_system, path = _open_uri(uri)
        if _is_local(file_system):
            place = Path(path)
            if not place.is_file():
                raise no_such_object(uri)
            _compare(uri, digest_file(place)[0], sha256)
            return place
        complete = cache / (sha256 or hashlib.sha256(uri.encode()).hexdigest())
        partial = complete.with_name(complete.name + PARTIAL_SUFFIX)
        with locked(complete.with_name(complete.name + LOCK_SUFFIX)):
            if complete.is_file() and digest_file(complete)[0] == sha256:
                return complete
            self._patience.through(lambda: download(file_system, path, uri, partial, self._patience.stop))
            found = digest_file(partial)[0]
            if sha256 and found != sha256:
                partial.unlink(missing_ok=True)
                _compare(uri, found, sha256)
            partial.replace(complete)
        return complete

    def exists(self, key: str) -> bool:
        """Raises `UnreachableError` where a remote store does not say."""

        def there() -> bool:
            # Not `isfile`: to fsspec whatever goes wrong means that there is no file.
            try:
                return bool(self._file_system.info(self._path(key))["type"] == "file")
            except (FileNotFoundError, NotADirectoryError):
                return False

        return self._asked(key, there)

    def list(self, prefix: str = "") -> list[str]:
        """Keys that start with `prefix`, sorted; partial files are no keys."""
        folder = prefix.rpartition("/")[0]
        return sorted(key for key in self._below(folder, prefix) if key.startswith(prefix))

    def listed(self, folder: str) -> Sequence[Stored]:
        """Every object below `folder`, sorted by key; none where there is no such folder. Partial files are none.

        Raises `StorageError` where the store does not say when an object was written."""

        return [
            Stored(key, int(about["size"] or 0), modified_s(self.uri_of(key), about))
            for key, about in sorted(self._below(folder, folder).items())
        ]

    def delete(self, key_or_prefix: str) -> None:
        """Delete one object, or every object below a folder. Nothing there is no error."""
        path = self._path(key_or_prefix.rstrip("/"))

        def remove() -> None:
            with contextlib.suppress(FileNotFoundError):
                self._file_system.rm(path, recursive=True)

        self._asked(key_or_prefix, remove)

    def _below(self, folder: str, asked: str) -> dict[str, dict[str, Any]]:
        """What the file system knows of every object below `folder` (empty: of all), by key. `asked`: for errors."""

        def find() -> dict[str, dict[str, Any]]:
            self._file_system.invalidate_cache()
            try:
                return dict(self._file_system.find(self._path(folder), detail=True))
            except (FileNotFoundError, NotADirectoryError):
                return {}

        found = (
            (posixpath.relpath(path, self._root), about) for path, about in self._asked(asked, find).items()
        )
        return {key: about for key, about in found if not key.endswith(PARTIAL_SUFFIX)}

    def _asked(self, what: str, work: Callable[[], R]) -> R:
        """A question to the file system; errors of this machine's disk are told as they are."""
        if self._is_local:
            return work()

        def speaking() -> R:
            with told_as_ours(f"{self.uri}/{what}"):
                return work()

        return self._patience.through(speaking)

    def _path(self, key: str) -> str:
        return posixpath.join(self._root, _checked(key)) if key else self._root

    def _put(self, key: str, chunks: Callable[[], Iterable[bytes]], size: int) -> ObjectRef:
        """`chunks` gives them from the beginning, each time that it is called."""
        uri = self.uri_of(key)
        if self._is_local:
            digest, written = write_atomically(Path(self._root) / key, chunks(), size)
            return ObjectRef(uri, digest, written)

        def write() -> str:
            hasher = hashlib.sha256()
            with told_as_ours(uri, writing=True), self._file_system.open(self._path(key), "wb") as target:
                for chunk in chunks():
                    target.write(chunk)
                    hasher.update(chunk)
            return hasher.hexdigest()

        return ObjectRef(uri, self._patience.through(write), size)


def _open_uri(uri: str) -> tuple[Any, str]:
    from fsspec.core import url_to_fs

    try:
        file_system, root = url_to_fs(uri)
    except (ImportError, ValueError) as error:
        raise StorageError(
            f"storage.uri {uri!r} cannot be opened: {error}; install the package of its protocol or use file://"
        ) from error
    return file_system, str(root).rstrip("/") or "/"


def _is_local(file_system: Any) -> bool:
    protocol = file_system.protocol
    return "file" in ((protocol,) if isinstance(protocol, str) else protocol)


def _checked(key: str) -> str:
    if not key or key.startswith("/") or any(part in ("", ".", "..") for part in key.split("/")):
        raise StorageError(
            f"object key {key!r} is not usable: give a relative path without '.' or '..' parts"
        )
    return key


def _compare(uri: str, found: str, announced: str) -> None:
    if announced and found != announced:
        raise DigestMismatchError(
            f"{uri} hashes to {found}, announced was {announced}: it is damaged or was replaced; restore it from a copy, or use an earlier one"
        )
