"""Sends that have to wait for a topic's metadata, in line.

Invariant: per topic, sends go on in the order in which they came; lines of different topics do not wait for each other;
and one failed look-up answers everybody who was in line while it was made.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from shared.errors import BusError


class TopicLines:
    """One per producer; used on its asyncio loop."""

    def __init__(self) -> None:
        self._locks: dict[str, asyncio.Lock] = {}
        self._waiting: dict[str, int] = {}
        self._failures: dict[str, tuple[float, BusError]] = {}

    def busy(self, topic: str) -> bool:
        """Whether somebody is in line: a later send has to go behind."""
        return topic in self._waiting

    async def wait(self, topic: str, look_up: Callable[[str], Awaitable[int]]) -> int:
        """The number of partitions of `topic`. Raises what `look_up` raises."""
        came = time.monotonic()
        self._waiting[topic] = self._waiting.get(topic, 0) + 1
        try:
            async with self._locks.setdefault(topic, asyncio.Lock()):
                failed_at, error = self._failures.get(topic, (0.0, None))
                if error is not None and failed_at >= came:
                    raise BusError(str(error)) from error
                try:
                    return await look_up(topic)
                except BusError as failure:
                    self._failures[topic] = (time.monotonic(), failure)
                    raise
        finally:
            self._waiting[topic] -= 1
            if not self._waiting[topic]:
                del self._waiting[topic]
