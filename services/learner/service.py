"""Entry of the learner: light to import, heavy to run.

Invariant: nothing here imports torch until the learner runs. Of several processes only rank 0 is a service: the others
hold no client of the bus.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import threading
from collections.abc import Callable

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
    # Not started: the model is still being read.
    await _unless_starting(asyncio.create_task(service.run(stop)), stop, lambda: service.open)


async def _follow(settings: Settings, place: Place, stop: asyncio.Event) -> None:
    """Obeys rank 0 until it says that it is over. A stop is asked of rank 0 too, which drains first."""
    opened = threading.Event()

    def work() -> None:
        follower = importlib.import_module("services.learner.distributed.follower")
        follower.follow_run(settings, place, opened.set, stop.is_set)

    await _unless_starting(asyncio.create_task(in_background(work)), stop, opened.is_set)


async def _unless_starting(
    working: asyncio.Task[None], stop: asyncio.Event, started: Callable[[], bool]
) -> None:
    """Awaits `working`. Asked to stop before it has started it is given up: there is nothing to drain."""
    asked = asyncio.create_task(stop.wait())
    await asyncio.wait({working, asked}, return_when=asyncio.FIRST_COMPLETED)
    asked.cancel()
    if not working.done() and not started():
        working.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await working
