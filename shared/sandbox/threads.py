"""Work with files in a thread.

Invariant: a descriptor that its caller closes is used by no thread any more, whoever was cancelled meanwhile: no thread
can be stopped, and its number would soon be another run's folder.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def in_thread(work: Callable[[], T]) -> T:
    """What `work` returns. Cancelled, it waits for its end all the same. Raises what it raises."""
    running = asyncio.get_running_loop().run_in_executor(None, work)
    try:
        return await asyncio.shield(running)
    finally:
        while not running.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([running])
        if not running.cancelled():
            running.exception()  # seen, where nobody is there for it any more
