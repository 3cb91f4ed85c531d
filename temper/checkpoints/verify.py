"""Whether checkpoints are whole.

Invariant: every file that is there is read to its last byte and hashed; what pruning took is no fault, except of the
newest checkpoint, from which the run would go on, and of one that was asked for by name.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from services.learner.checkpoint_folders import CheckpointFolders
from services.learner.manifest import MANIFEST
from shared.errors import StorageError
from temper.checkpoints.rows import missing_files


@dataclass(frozen=True, slots=True)
class Verified:
    step: int
    files: int
    """Hashed."""
    size_bytes: int
    pruned: bool
    problems: tuple[str, ...]


def verify(folders: CheckpointFolders, only: int | None = None) -> Iterator[Verified]:
    """One result a complete checkpoint, ascending; `only`: that step. Raises `StorageError` where there is none."""
    steps = folders.steps()
    if only is not None and only not in steps:
        raise StorageError(f"{folders.uri(only)} holds no complete checkpoint (no {MANIFEST})")
    if not steps:
        raise StorageError(f"{folders.uri(0).rsplit('/', 1)[0]} holds no complete checkpoint")
    for step in steps if only is None else [only]:
        yield _verified(folders, step, whole=step == steps[-1] or step == only)


def _verified(folders: CheckpointFolders, step: int, *, whole: bool) -> Verified:
    try:
        manifest = folders.manifest(step)
        gone = missing_files(folders, step, manifest)
    except StorageError as error:
        return Verified(step, 0, 0, pruned=False, problems=(str(error),))
    problems: list[str] = []
    size = count = 0
    for name, file in manifest.files.items():
        if name in gone:
            if whole or name not in manifest.large:
                problems.append(f"{name} is gone")
            continue
        try:
            with tempfile.TemporaryDirectory(prefix="temper-verify-") as cache:
                uri = folders.store.uri_of(f"{folders.folder(step)}/{name}")
                folders.store.fetch(uri, file.sha256, Path(cache))
        except StorageError as error:
            problems.append(str(error))
        size, count = size + file.size_bytes, count + 1
    return Verified(step, count, size, pruned=bool(gone), problems=tuple(problems))
