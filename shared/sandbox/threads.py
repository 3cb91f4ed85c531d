"""Work with files in a thread.

Invariant: a descriptor that its caller closes is used by no thread any more, whoever was cancelled meanwhile: no thread
can be stopped, and its number would soon be another run's folder.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def in_thread(work: Callable[[], T]) -> T:
    """What `work` returns. Cancelled, it waits for its end all the same; what no thread has begun by then is never done,
    for the threads may be busy for long. Raises what it raises."""
    begins, given_up, begun = threading.Lock(), False, False

    def unless_given_up() -> T:
        nonlocal begun
        with begins:
            if given_up:
                raise concurrent.futures.CancelledError
            begun = True
        return work()

    running = asyncio.get_running_loop().run_in_executor(None, unless_given_up)
    try:
        return await asyncio.shield(running)
    finally:
        with begins:
            given_up = not begun
        while begun and not running.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([running])
        running.add_done_callback(_seen)


def _seen(done: asyncio.Future[T]) -> None:
    """Nobody may be there any more for what it raised."""
    if not done.cancelled():
        done.exception()
