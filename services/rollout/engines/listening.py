"""An engine that tells of its tokens while it samples, whichever engine it is.

Invariant: every token of a generation is told once, in order, before the call returns; what is told after the call
returned, or was cancelled, is nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from services.rollout.engines.base import GenerateRequest, Generation

Heard = Callable[[int], None]
"""One token, on the event loop."""


class Generates(Protocol):
    """As much of an engine as is needed here."""

    async def generate(self, request: GenerateRequest) -> Generation: ...


@dataclass(slots=True)
class _Ear:
    """Takes tokens from the engine's thread to the event loop. `told`: how many came through."""

    heard: Heard
    loop: asyncio.AbstractEventLoop
    told: int = 0
    over: bool = False

    def from_thread(self, token: int) -> None:
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.tell, token)

    def tell(self, token: int) -> None:
        if not self.over:
            self.told += 1
            self.heard(token)


async def generate(engine: Generates, request: GenerateRequest, heard: Heard) -> Generation:
    """As `Engine.generate`; `heard` gets the tokens, the last ones at the end where the engine kept them back."""
    ear = _Ear(heard, asyncio.get_running_loop())
    try:
        made = await engine.generate(replace(request, heard=ear.from_thread))
        for token in made.token_ids[ear.told :].tolist():
            ear.tell(int(token))
        return made
    finally:
        ear.over = True
