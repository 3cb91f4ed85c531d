"""What one checkpoint holds, as plain values.

Invariant: everything is of the checkpoint's own manifest and state; only the pass rate is of the run's summary.
"""

from __future__ import annotations

from typing import Any

from services.learner.checkpoint_folders import CheckpointFolders
from services.learner.intake.resolved import ResolvedGroups
from shared.settings import Settings
from temper.checkpoints.rows import missing_files, stage_words
from temper.report.rates import pass_rates


def about(folders: CheckpointFolders, step: int, settings: Settings) -> dict[str, Any]:
    """JSON. Raises `StorageError`, and `DataError` for a damaged summary."""
    manifest = folders.manifest(step)
    state = folders.state(step, manifest)
    gone = set(missing_files(folders, step, manifest))
    reference = state["reference"]
    return {
        "run": state["run_id"],
        "step": step,
        "uri": folders.uri(step),
        "format": manifest.format,
        "created_ms": manifest.created_ms,
        "stage": stage_words(state, settings),
        "pass_rate": (pass_rates(settings.run_folder) or {}).get(step),
        "lineage": state["lineage"],
        "kl_coefficient": state["kl_coefficient"],
        "reference": reference["uri"] if reference else None,
        "steps": [record["step"] for record in state["steps"]],
        "resolved": len(ResolvedGroups.from_state(state["intake"]["resolved"])),
        "offsets": [{**shard, "needed": len(shard["needed"])} for shard in state["intake"]["offsets"]],
        "files": [
            {"name": name, "sha256": file.sha256, "size_bytes": file.size_bytes, "there": name not in gone}
            for name, file in manifest.files.items()
        ],
    }
