"""Bytes that are as they were announced, and no weights: reading them once more changes nothing."""

from __future__ import annotations

from pathlib import Path

from shared.errors import AttestationError


def unreadable(path: Path, error: Exception) -> AttestationError:
    """To be raised from `error`."""
    return AttestationError(
        f"weights {path}: not a readable safetensors file: {error}; publish the policy again"
    )
