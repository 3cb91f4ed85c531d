"""Small files of a run's folder, for other processes to find."""

from __future__ import annotations

from pathlib import Path

from shared.errors import StorageError


def note(path: Path, text: str) -> None:
    """Raises `StorageError`, which names the place and the mend, where the disk is full or cannot be written."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StorageError(
            f"{path} cannot be written: {error.strerror}; make room there or set run.folder"
        ) from error
