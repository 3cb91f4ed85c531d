"""A word to end what is still being sampled, with what there is of it.

Invariant: once asked it stays asked. An engine looks at it between two tokens; what cannot end is waited for as long as
the word says, and then nothing of it is kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, Literal, TypeVar

R = TypeVar("R")
Reason = Literal["", "surplus", "hand_back"]
"""surplus: nobody wants the rest. hand_back: another process goes on with it."""

GRACE_S: Final = 2.0
"""From the word to the answer: a decode step and the thread's turn, on a busy machine."""


class Cut:
    """Asked on the event loop, looked at from any thread. The first reason stays, and its grace."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self.reason: Reason = ""
        self.grace_s: float | None = GRACE_S
        """For what is not over when the word comes; None: as long as it takes."""
        self.near = False
        """It may come soon: what would be half done by then is begun so that it can be undone."""

    @property
    def asked(self) -> bool:
        return self._event.is_set()

    def ask(self, reason: Reason, grace_s: float | None = GRACE_S) -> None:
        if not self.reason:
            self.reason, self.grace_s = reason, grace_s
        self._event.set()

    async def wait(self) -> None:
        await self._event.wait()


def is_asked(cut: Cut | None) -> bool:
    return cut is not None and cut.asked


async def unless_cut(cut: Cut | None, work: Coroutine[Any, Any, R], grace_s: float | None = None) -> R | None:
    """What `work` returns; None where it was not done `grace_s` after the cut (by default the word's own), and is
    cancelled. Raises what it raises."""
    if cut is None:
        return await work
    running = asyncio.ensure_future(work)
    asked = asyncio.ensure_future(cut.wait())
    try:
        await asyncio.wait({running, asked}, return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            await asyncio.wait({running}, timeout=cut.grace_s if grace_s is None else grace_s)
        return running.result() if running.done() else None
    finally:
        running.cancel()
        asked.cancel()
        await asyncio.gather(running, asked, return_exceptions=True)
