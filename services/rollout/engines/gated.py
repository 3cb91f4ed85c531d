"""An engine behind the gate of `rollout.follow`: what the service and the follower hold.

Invariant: a new policy goes in as hold → pause → load (with canary) → resume, and the engine is resumed whatever the
load came to: one that could not attest its weights samples nothing by its own contract.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from services.rollout.engines.base import (
    Engine,
    EngineLoad,
    GenerateRequest,
    Generation,
    Ids,
    Logprobs,
)
from services.rollout.engines.gate import Gate, Mode
from shared.contracts import Canary


class GatedEngine:
    """See `Engine`; `episode` is what turns of one episode are made in."""

    def __init__(self, engine: Engine, mode: Mode) -> None:
        self.engine = engine
        self._gate = Gate(mode, engine.capacity().max_batch)
        self.pause_seconds = 0.0
        """Of the last load: from the pause to the resumption."""
        self.before_hold: Callable[[], None] = lambda: None
        """Called when a new policy is about to wait for what the mode protects."""

    @property
    def name(self) -> str:
        return self.engine.name

    @property
    def exact(self) -> bool:
        return self.engine.exact

    @property
    def longest(self) -> int:
        return self.engine.longest

    def episode(self, name: str) -> AbstractAsyncContextManager[None]:
        """`name` is that of `GenerateRequest.episode`."""
        return self._gate.episode(name)

    async def generate(self, request: GenerateRequest) -> Generation:
        async with self._gate.turn(request.episode):
            return await self.engine.generate(request)

    async def pause(self) -> None:
        await self.engine.pause()

    async def resume(self) -> None:
        await self.engine.resume()

    async def load_policy(self, weights: Path, version: int, canary: Canary | None) -> None:
        self.before_hold()
        async with self._gate.hold():
            began = time.monotonic()
            await self.engine.pause()
            try:
                await self.engine.load_policy(weights, version, canary)
            finally:
                await self.engine.resume()
                self.pause_seconds = time.monotonic() - began

    async def score(self, token_ids: Ids, lengths: Ids) -> Logprobs:
        return await self.engine.score(token_ids, lengths)

    def capacity(self) -> EngineLoad:
        return self.engine.capacity()

    async def watch(self) -> None:
        await self.engine.watch()

    def close(self) -> None:
        self.engine.close()
