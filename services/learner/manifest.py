"""The manifest of a checkpoint: the files that make it complete, each with its digest.

Invariant: it is written last. Weights and optimizer of old checkpoints may be gone; state and manifest never are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from shared.errors import StorageError

WEIGHTS, STATE, MANIFEST = "weights.safetensors", "state.json", "manifest.json"
OPTIMIZER = "optimizer"
"""Name of the sharded tensors: moments, and masters where another dtype is served. Format 1 has them in one file,
optimizer.safetensors."""
FORMAT = 2
READABLE = (1, 2)


@dataclass(frozen=True, slots=True)
class StoredFile:
    """What a manifest says of a file."""

    sha256: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Manifest:
    step: int
    files: Mapping[str, StoredFile]
    created_ms: int
    format: int = FORMAT

    def to_json(self) -> bytes:
        files = {name: asdict(file) for name, file in self.files.items()}
        document = {"format": self.format, "step": self.step, "files": files, "created_ms": self.created_ms}
        return json.dumps(document, indent=1).encode()

    @property
    def digests(self) -> dict[str, str]:
        """sha256 by file name."""
        return {name: file.sha256 for name, file in self.files.items()}

    @property
    def large(self) -> tuple[str, ...]:
        """The files that pruning takes."""
        return tuple(name for name in self.files if name != STATE)

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files.values())


def read_manifest(raw: bytes, where: str) -> Manifest:
    """Raises `StorageError` for one that is damaged or that this build does not read; `where` names it."""
    document = read_document(raw, f"{where}: its {MANIFEST}")
    try:
        if "format" in document:
            check_format(document, where)
        files = {
            str(name): StoredFile(str(entry["sha256"]), int(entry["size_bytes"]))
            for name, entry in document["files"].items()
        }
        return Manifest(int(document["step"]), files, int(document["created_ms"]), int(document["format"]))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StorageError(
            f"checkpoint {where}: its {MANIFEST} is damaged: {type(error).__name__}: {error}; restore it from a copy"
        ) from error


def read_document(raw: bytes, where: str) -> dict[str, Any]:
    """A JSON object. Raises `StorageError`."""
    try:
        document = json.loads(raw)
    except ValueError as error:
        raise StorageError(f"checkpoint {where} is damaged: {error}; restore it from a copy") from error
    if not isinstance(document, dict):
        raise StorageError(f"checkpoint {where} is damaged: no JSON object; restore it from a copy")
    return document


def check_format(document: Mapping[str, Any], where: str) -> None:
    """Raises `StorageError` in one line."""
    if document.get("format") not in READABLE:
        raise StorageError(
            f"checkpoint {where} has format {document.get('format')}, this build reads "
            f"{' and '.join(map(str, READABLE))}: resume it with the build that wrote it"
        )
