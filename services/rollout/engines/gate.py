"""When a new policy may go in: the three modes of `rollout.follow`.

Invariant: while the gate is held nothing that the mode protects is running: in `between_turns` no turn, in `drain` no
episode; `in_flight` protects nothing. A turn of an episode that had begun is let through in `drain`, or the episode
could never end. Confined to one event loop.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Literal

Mode = Literal["in_flight", "between_turns", "drain"]


class Gate:
    """`places`: turns let in at once, where a mode waits for turns. More would only queue inside the engine, and a
    change of policy would have to wait for that whole queue."""

    def __init__(self, mode: Mode, places: int = 1 << 30) -> None:
        self.mode = mode
        self.places = places
        self._holders = 0
        self._turns = 0
        self._episodes: Counter[str] = Counter()
        self._waiting: list[asyncio.Future[None]] = []

    @property
    def held(self) -> bool:
        return self._holders > 0

    @property
    def running(self) -> tuple[int, int]:
        """(turns, named episodes)."""
        return self._turns, self._episodes.total()

    @asynccontextmanager
    async def turn(self, episode: str = "") -> AsyncIterator[None]:
        """One generation. Without an open episode of that name it is an episode of one turn."""
        await self._until(lambda: self._open_for(episode))
        self._turns += 1
        try:
            yield
        finally:
            self._turns -= 1
            self._tell()

    @asynccontextmanager
    async def episode(self, name: str) -> AsyncIterator[None]:
        """All turns of one episode. Enter it once its policy is served: a wait inside it would hold up `drain`."""
        await self._until(lambda: self.mode != "drain" or not self.held)
        self._episodes[name] += 1
        try:
            yield
        finally:
            self._episodes[name] -= 1
            if not self._episodes[name]:
                del self._episodes[name]
            self._tell()

    @asynccontextmanager
    async def hold(self) -> AsyncIterator[None]:
        """Lets nothing new in, waits until what the mode protects has ended, and opens at the end."""
        self._holders += 1
        try:
            await self._until(self._quiet)
            yield
        finally:
            self._holders -= 1
            self._tell()

    def _open_for(self, episode: str) -> bool:
        if self.mode == "in_flight":
            return True
        if self._turns >= self.places:
            return False
        return not self.held or (self.mode == "drain" and self._episodes[episode] > 0)

    def _quiet(self) -> bool:
        if self.mode == "in_flight":
            return True
        return not self._turns and (self.mode == "between_turns" or not self._episodes.total())

    async def _until(self, holds: Callable[[], bool]) -> None:
        """Nothing runs between the last look and the caller's next line, so what held still holds there."""
        while not holds():
            future = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
            await future

    def _tell(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)
