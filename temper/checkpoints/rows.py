"""What checkpoints a run has, as rows.

Invariant: only manifests, and the states of those that can still be loaded, are read; nothing is changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from services.learner.checkpoint_folders import CheckpointFolders
from services.learner.manifest import Manifest
from shared.settings import Settings
from temper.report.rates import pass_rates


@dataclass(frozen=True, slots=True)
class CheckpointRow:
    step: int
    stage: str
    """`rl 3/12`: steps done in it. Empty where the weights are gone."""
    created_ms: int
    size_bytes: int
    """Of all its files as they were written."""
    held: bool
    """Weights and optimizer are there."""
    pass_rate: float | None
    """Of the last evaluation that measured it; None where none did, or the run has no summary yet."""


def rows(folders: CheckpointFolders, settings: Settings) -> list[CheckpointRow]:
    """Every complete checkpoint, by step. Raises `StorageError` for one that is damaged, `DataError` for a damaged
    summary."""
    held, rates = set(folders.held()), pass_rates(settings.run_folder) or {}
    found = []
    for step in folders.steps():
        manifest = folders.manifest(step)
        stage = stage_words(folders.state(step, manifest), settings) if step in held else ""
        found.append(
            CheckpointRow(
                step, stage, manifest.created_ms, manifest.size_bytes, step in held, rates.get(step)
            )
        )
    return found


def stage_words(state: dict[str, Any], settings: Settings) -> str:
    index, done = int(state["stage_index"]), int(state["stage_step"])
    if index >= len(settings.stages):
        return "end"
    stage = settings.stages[index]
    return f"{stage.kind} {done}/{stage.steps}"


def missing_files(folders: CheckpointFolders, step: int, manifest: Manifest) -> Sequence[str]:
    """Files that the manifest names and that are not there."""
    keys = set(folders.store.list(f"{folders.folder(step)}/"))
    return [name for name in manifest.files if f"{folders.folder(step)}/{name}" not in keys]
