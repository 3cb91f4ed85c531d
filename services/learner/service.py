"""Entry of the learner: light to import, heavy to run.

Invariant: nothing here imports torch until the learner runs.
"""

from __future__ import annotations

import asyncio
import importlib

from shared.settings import Settings


async def run(settings: Settings, worker_id: str, stop: asyncio.Event) -> None:
    """Runs the learner of `settings.run` until the run has ended or `stop` is set (returns).

    Raises `ConfigError`, `DependencyError`, `StorageError` and `TemperError`, each in one line.
    """
    # In a thread: the import takes seconds, and signals and the loop go on meanwhile.
    process = await asyncio.to_thread(importlib.import_module, "services.learner.process")
    await process.LearnerService(settings, worker_id).run(stop)
