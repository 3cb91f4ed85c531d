"""Prepared model folders: complete or absent, and never somebody else's files.

Invariant: a folder that holds `prepared.json` is complete and came from the recipe named there; a folder
without it was not made here and is left alone.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from shared.errors import ConfigError, StorageError

RECORD = "prepared.json"


def sha256_of(path: Path) -> str:
    """Hex digest of a file's bytes."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def is_prepared(folder: Path, recipe: dict[str, str]) -> bool:
    """True where `folder` holds what `recipe` makes, with every file of the recorded size.

    Raises `ConfigError` where the folder exists and is not ours, or came from another recipe.
    """
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return False
    record = folder / RECORD
    if not record.is_file():
        raise ConfigError(
            f"{folder}: exists and was not prepared by this command; give another folder or remove it"
        )
    document = json.loads(record.read_text(encoding="utf-8"))
    if document.get("recipe") != recipe:
        raise ConfigError(
            f"{folder}: was prepared from {document.get('recipe')}, asked for {recipe}; give another folder or remove it"
        )
    return all(
        (folder / name).is_file() and (folder / name).stat().st_size == entry["bytes"]
        for name, entry in document["files"].items()
    )


def prepare(folder: Path, recipe: dict[str, str], build: Callable[[Path], None]) -> Path:
    """`folder` with what `build(temporary folder)` wrote; atomic, and nothing to do the second time.

    Raises `ConfigError` as `is_prepared`, `StorageError` where the folder cannot be written.
    """
    if is_prepared(folder, recipe):
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    except OSError as error:
        raise StorageError(
            f"{folder}: cannot be written: {error.strerror}; give a writable folder"
        ) from error
    try:
        build(made)
        _record(made, recipe)
        _make_readable(made)
        if folder.exists():
            shutil.rmtree(folder)
        made.rename(folder)
    except OSError as error:
        raise StorageError(
            f"{folder}: cannot be written: {error}; free space or give another folder"
        ) from error
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return folder


def _make_readable(made: Path) -> None:
    """A temporary folder and the files of some writers are private; a model is read by other users' services."""
    made.chmod(0o755)
    for path in made.iterdir():
        path.chmod(0o644)


def _record(made: Path, recipe: dict[str, str]) -> None:
    files = {
        path.name: {"sha256": sha256_of(path), "bytes": path.stat().st_size}
        for path in sorted(made.iterdir())
        if path.is_file()
    }
    record = made / RECORD
    record.write_text(json.dumps({"recipe": recipe, "files": files}, indent=1) + "\n", encoding="utf-8")
    for path in [*made.iterdir(), made]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
