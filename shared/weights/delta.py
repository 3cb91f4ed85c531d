"""The file of a delta: what makes one version of a policy of another.

Invariant: what is made is the later version's file to the byte, or a `DigestMismatchError`: every changed tensor has
the digest of its result in the delta, and the whole has the digest under which the full weights are announced. Whoever
took the delta therefore serves what whoever took the full weights serves.

It is a safetensors file itself: `<tensor>/places` and `<tensor>/values` (uint8; see `sparse`), and in its metadata what
each change is, which version it is made of and which it makes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from shared.errors import DigestMismatchError, StorageError
from shared.storage.local import disk_error
from shared.weights.layout import WeightsFile, Words, header_of
from shared.weights.sparse import BadChangeError, Bytes, Change, apply

FORMAT = "temper-delta-1"


@dataclass(frozen=True, slots=True)
class Versions:
    """Which file it is made of, and which it makes: digests of whole files."""

    base_version: int
    base_sha256: str
    version: int
    sha256: str


@dataclass(frozen=True, slots=True)
class TensorChange:
    """sha256: of the changed tensor's bytes."""

    change: Change
    sha256: str


def delta_bytes(versions: Versions, changes: Mapping[str, TensorChange]) -> tuple[list[bytes], int]:
    """The file in pieces, and its size."""
    table = {
        name: {
            "form": item.change.form,
            "count": item.change.count,
            "size": item.change.size,
            "sha256": item.sha256,
        }
        for name, item in changes.items()
    }
    parts: dict[str, Bytes] = {}
    for name, item in changes.items():
        parts[f"{name}/places"], parts[f"{name}/values"] = item.change.places, item.change.values
    header = header_of(
        {name: ("U8", part.shape, part.nbytes) for name, part in parts.items()},
        {"format": FORMAT, "versions": json.dumps(asdict(versions)), "changes": json.dumps(table)},
    )
    pieces = [header, *(part.tobytes() for part in parts.values())]
    return pieces, sum(map(len, pieces))


class DeltaFile:
    """A delta, opened for reading."""

    def __init__(self, path: Path) -> None:
        """Raises `StorageError` for a file that is none."""
        self._file = WeightsFile(path)
        self._path = path
        metadata = self._file.metadata
        if metadata.get("format") != FORMAT:
            raise StorageError(
                f"{path} has format {metadata.get('format')!r}, this build reads {FORMAT!r}: "
                "run learner and rollout from one build"
            )
        try:
            self.versions = Versions(**json.loads(metadata["versions"]))
            self._table: dict[str, dict[str, Any]] = json.loads(metadata["changes"])
        except (ValueError, KeyError, TypeError) as error:
            raise StorageError(f"{path} is no readable delta: {error}") from error

    @property
    def tensors(self) -> tuple[str, ...]:
        """Names of those that changed."""
        return tuple(self._table)

    def sha256_of(self, name: str) -> str:
        """Of the tensor when it is changed."""
        return str(self._table[name]["sha256"])

    def patch(self, name: str, words: Words) -> None:
        """Changes a tensor in place. Raises `DigestMismatchError` where the change cannot be of it."""
        entry = self._table[name]
        try:
            change = Change(
                entry["form"],
                entry["count"],
                entry["size"],
                self._file.words(f"{name}/places"),
                self._file.words(f"{name}/values"),
            )
            apply(change, words)
        except (BadChangeError, KeyError) as error:
            raise DigestMismatchError(f"{self._path}: the change of {name!r} is damaged: {error}") from error


def rebuild(base: WeightsFile, base_sha256: str, deltas: Sequence[DeltaFile], target: Path) -> str:
    """Writes to `target` what the deltas, one after another, make of `base`; its sha256.

    One pass: a tensor is patched and checked while the one before it is written. Raises `DigestMismatchError` (a delta
    of another file, a tensor that comes out as another) and `StorageError` (disk full).
    """
    _check_chain(base, base_sha256, deltas)
    whole = hashlib.sha256()
    size = sum(place.end - place.begin for place in base.tensors.values()) + len(base.header)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("wb", buffering=0) as out, ThreadPoolExecutor(1) as writing:
            pending: Future[None] = writing.submit(_write, out, whole, base.header)
            for name in base.tensors:
                made = _made(base, deltas, name)
                pending.result()
                pending = writing.submit(_write, out, whole, made.view(np.uint8).data)
            pending.result()
    except OSError as error:
        raise disk_error(target, error, size) from error
    return whole.hexdigest()


def _check_chain(base: WeightsFile, base_sha256: str, deltas: Sequence[DeltaFile]) -> None:
    at = base_sha256
    for delta in deltas:
        versions = delta.versions
        if versions.base_sha256 != at:
            raise DigestMismatchError(
                f"the delta to policy {versions.version} is of weights {versions.base_sha256[:12]}, not of {at[:12]}"
            )
        unknown = sorted(set(delta.tensors) - set(base.tensors))
        if unknown:
            raise DigestMismatchError(
                f"the delta to policy {versions.version} changes {unknown[0]!r}, which {base.path} does not have"
            )
        at = versions.sha256


def _made(base: WeightsFile, deltas: Sequence[DeltaFile], name: str) -> Words:
    touching = [delta for delta in deltas if name in delta.tensors]
    if not touching:
        return base.words(name)
    words = base.words(name).copy()
    for delta in touching:
        delta.patch(name, words)
    found, announced = hashlib.sha256(words.data).hexdigest(), touching[-1].sha256_of(name)
    if found != announced:
        raise DigestMismatchError(
            f"tensor {name!r} of policy {touching[-1].versions.version} comes out as {found[:12]}, "
            f"announced was {announced[:12]}"
        )
    return words


def _write(out: BinaryIO, whole: Any, data: Any) -> None:
    whole.update(data)
    left = memoryview(data)
    while left:
        left = left[out.write(left) :]
