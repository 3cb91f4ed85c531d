"""One run's topics around a verifier: attempts in, rewards out."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from services.verifier.service import VerifierService
from shared.bus.delivery import Delivery
from shared.bus.producer import TypedProducer
from shared.bus.reader import LogReader
from shared.bus.topics import TopicNames
from shared.contracts import Headers, Message, Reward
from shared.settings import Settings
from shared.verification.checks import Methods
from shared.verification.registered import registered


class Bench:
    """One run's topics: attempts in, rewards out."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.names = TopicNames(settings.bus.namespace)
        self.producer = TypedProducer(settings, "bench")

    async def attempt(self, message: Message, priority: str = "normal", headers: Headers = Headers()) -> None:  # noqa: B008
        await self.producer.send(self.names.trajectories("single_turn", priority), message, headers)

    async def read(
        self, topic: str, until: Callable[[list[Delivery[Any]]], bool], timeout_s: float = 120.0
    ) -> list[Delivery[Any]]:
        """Everything on the topic, once it is enough, and what follows at once; fails where it never is."""
        reader = LogReader(self.settings, "verifier", [topic])
        found: list[Delivery[Any]] = []
        try:
            async with asyncio.timeout(timeout_s):
                while not until(found):
                    found += await reader.poll(0.2)
                found += await reader.poll(0.2)
        except TimeoutError:
            pytest.fail(f"{topic} holds {[d.message for d in found]}")
        finally:
            await reader.close()
        return found

    async def rewards(self, count: int) -> dict[str, Reward]:
        deliveries = await self.read(self.names.rewards, lambda found: len(found) >= count)
        return {delivery.message.trajectory_id: delivery.message for delivery in deliveries}


@contextlib.asynccontextmanager
async def bench(settings: Settings) -> AsyncIterator[Bench]:
    made = Bench(settings)
    try:
        yield made
    finally:
        await made.producer.close()


@contextlib.asynccontextmanager
async def verifying(
    settings: Settings, worker_id: str = "verifier-0", methods: Methods = registered
) -> AsyncIterator[asyncio.Task[None]]:
    """A verifier that runs inside the block and has left, without an error, after it."""
    stop = asyncio.Event()
    running = asyncio.create_task(VerifierService(settings, worker_id, methods).run(stop))
    try:
        yield running
    finally:
        stop.set()
        await asyncio.wait_for(running, 20.0)
