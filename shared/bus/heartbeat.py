"""Heartbeats: every service says that it is alive, what it serves and what it waits for.

Invariant: one heartbeat every interval for as long as the loop runs; a broker that is away delays them, and never
ends the service. The last one is sent when the loop stops, with whatever state `make` then reports. Every one carries
its process's id and the time it was made, whoever made it: a heartbeat without a time would count as long past.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable

import structlog

from shared.bus.producer import TypedProducer
from shared.contracts.worker import GROUP_PID, Heartbeat
from shared.errors import TemperError

_log = structlog.get_logger(__name__)
_LAST_S = 2.0


class HeartbeatLoop:
    """`make` is called on the asyncio loop, once per heartbeat."""

    def __init__(
        self, producer: TypedProducer, topic: str, make: Callable[[], Heartbeat], interval_s: float
    ) -> None:
        self._producer = producer
        self._topic = topic
        self._make = make
        self._interval_s = interval_s

    async def run(self, stop: asyncio.Event) -> None:
        """Beat until `stop` is set or the task is cancelled, then once more."""
        failing = False
        try:
            while not stop.is_set():
                failing = await self._beat(failing)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), self._interval_s)
        finally:
            with contextlib.suppress(TimeoutError, asyncio.CancelledError):
                await asyncio.wait_for(self._beat(failing), _LAST_S)

    async def _beat(self, failing: bool) -> bool:
        """Send one; returns whether it failed. Only the first failure of a row is logged."""
        try:
            stamp = {
                "pid": int(os.environ.get(GROUP_PID, os.getpid())),
                "created_ms": int(time.time() * 1000),
            }
            await self._producer.send(self._topic, self._make().model_copy(update=stamp))
        except TemperError as error:
            if not failing:
                _log.warning("heartbeat not sent", topic=self._topic, error=str(error))
            return True
        return False
