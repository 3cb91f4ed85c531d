"""Entry of the learner: light to import, heavy to run.

Invariant: nothing here imports torch until the learner runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib

from shared.settings import Settings
from shared.stopping import unless


async def run(settings: Settings, worker_id: str, stop: asyncio.Event) -> None:
    """Runs the learner of `settings.run` until the run has ended or `stop` is set (returns).

    Raises `ConfigError`, `DependencyError`, `StorageError` and `TemperError`, each in one line.
    """
    # In a thread: the import takes seconds, and signals and the loop go on meanwhile.
    process = await unless(stop, asyncio.to_thread(importlib.import_module, "services.learner.process"))
    if process is None:
        return
    service = process.LearnerService(settings, worker_id)
    working = asyncio.create_task(service.run(stop))
    asked = asyncio.create_task(stop.wait())
    await asyncio.wait({working, asked}, return_when=asyncio.FIRST_COMPLETED)
    asked.cancel()
    if not working.done() and not service.open:
        working.cancel()  # the model is still being read: there is nothing to drain
    with contextlib.suppress(asyncio.CancelledError):
        await working
