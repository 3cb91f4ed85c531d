"""Entry of the learner: light to import, heavy to run.

Invariant: nothing here imports torch until the learner runs. Of several processes only rank 0 is a service: the others
hold no client of the bus.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os

from services.learner.distributed.place import Place, check_place, place_of
from shared.settings import Settings
from shared.stopping import in_background, unless


async def run(settings: Settings, worker_id: str, stop: asyncio.Event) -> None:
    """Runs the learner of `settings.run` until the run has ended or `stop` is set (returns).

    Raises `ConfigError`, `DependencyError`, `StorageError` and `TemperError`, each in one line.
    """
    place = place_of(os.environ)
    check_place(settings.learner, place)
    if not place.leads:
        await _follow(settings, place, stop)
        return
    # In a thread: the import takes seconds, and signals and the loop go on meanwhile.
    process = await unless(stop, asyncio.to_thread(importlib.import_module, "services.learner.process"))
    if process is None:
        return
    service = process.LearnerService(settings, worker_id, place)
    working = asyncio.create_task(service.run(stop))
    asked = asyncio.create_task(stop.wait())
    await asyncio.wait({working, asked}, return_when=asyncio.FIRST_COMPLETED)
    asked.cancel()
    if not working.done() and not service.open:
        working.cancel()  # the model is still being read: there is nothing to drain
    with contextlib.suppress(asyncio.CancelledError):
        await working


async def _follow(settings: Settings, place: Place, stop: asyncio.Event) -> None:
    """Obeys rank 0 until it says that it is over. A stop is asked of rank 0 too, which drains first."""

    def work() -> None:
        opening = importlib.import_module("services.learner.distributed.opening")
        follower = importlib.import_module("services.learner.distributed.follower")
        replica = importlib.import_module("services.learner.replica")
        policy, ranks = opening.open_policy(settings, place)
        follower.follow(replica.Replica(policy, settings.learner, ranks), ranks, stop.is_set)

    await in_background(work)
