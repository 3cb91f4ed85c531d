"""Giving up on work that nobody waits for any more.

Invariant: once `stop` is set, `unless` returns without waiting for the work, and the work is cancelled. A thread cannot
be cancelled: what it still does is left behind, so this is for work that a kill would not harm either.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def unless(stop: asyncio.Event, work: Coroutine[Any, Any, T]) -> T | None:
    """The result of `work`, or None where `stop` was set first. Raises what `work` raises."""
    task = asyncio.ensure_future(work)
    asked = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({task, asked}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            return await task
        return None
    finally:
        task.cancel()
        asked.cancel()


async def in_background(call: Callable[[], T]) -> T:
    """`call()` in a thread that no end of the loop or of the process waits for. Raises what it raises."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def tell(settle: Callable[[Any], None], value: Any) -> None:
        def unless_gone() -> None:
            if not done.done():
                settle(value)

        with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits
            loop.call_soon_threadsafe(unless_gone)

    def run() -> None:
        try:
            value = call()
        except Exception as error:  # noqa: BLE001 - handed to whoever awaits, whatever it is
            tell(done.set_exception, error)
        else:
            tell(done.set_result, value)

    threading.Thread(target=run, daemon=True).start()
    return await done
