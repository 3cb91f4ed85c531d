"""Calls of an engine that its `close`, from whatever thread, can end.

Invariant: after `close` no call runs on and none begins; each that ran is told so, and one that was cancelled by its
own caller is over when the cancellation comes through.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from services.rollout.engines.base import GenerationFault

R = TypeVar("R")


class Calls:
    """Of one engine, made on one loop."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.closed = False

    def __len__(self) -> int:
        return len(self._running)

    async def run(self, work: Coroutine[Any, Any, R]) -> R:
        """What `work` returns or raises. Raises `GenerationFault` once the engine is closed."""
        if self.closed:
            work.close()
            raise GenerationFault("the engine is closed: it takes no more requests")
        self._loop = asyncio.get_running_loop()
        call = asyncio.create_task(work)
        self._running.add(call)
        try:
            return await call
        except asyncio.CancelledError:
            if self.closed:
                raise GenerationFault("the engine was closed while this request ran") from None
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
            raise
        except Exception as error:
            if self.closed and not isinstance(error, GenerationFault):
                raise GenerationFault("the engine was closed while this request ran") from error
            raise
        finally:
            self._running.discard(call)

    def close(self) -> bool:
        """False where it was closed before."""
        if self.closed:
            return False
        self.closed = True
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._cancel)
        return True

    def _cancel(self) -> None:
        for call in self._running:
            call.cancel()
