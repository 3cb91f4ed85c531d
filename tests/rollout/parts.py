"""Tasks, policies and a reader of trajectories for the service's tests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np

from services.rollout.engines.decoder import Decoder, load_model
from shared.bus.producer import TypedProducer
from shared.bus.reader import LogReader
from shared.bus.topics import TopicNames
from shared.contracts import (
    Canary,
    ChatMessage,
    DomainRef,
    Headers,
    Message,
    Policy,
    Sampling,
    Task,
    WeightsRef,
)
from shared.settings import Settings
from shared.storage import ObjectStore


def make_task(settings: Settings, index: int = 0, *, samples: int = 2, **changes: Any) -> Task:
    sampling = {"samples": samples, "group_size": samples, "max_tokens": 6, **changes.pop("sampling", {})}
    values: dict[str, Any] = {
        "run_id": settings.run.name,
        "group_id": f"0-rl-{index:07d}",
        "stage": "rl",
        "stage_index": 0,
        "domain": DomainRef(name="arithmetic", version=1, seed=index),
        "workload": "single_turn",
        "priority": "normal",
        "purpose": "train",
        "messages": (ChatMessage(role="user", content=f"What is {index} + 1?"),),
        "sampling": Sampling(**sampling),
        "created_ms": int(time.time() * 1000),
    }
    return Task(**(values | changes))


def make_policy(settings: Settings, weights: Path, version: int, **changes: Any) -> Policy:
    """Announces the tiny model's file `weights` under its right digest and canary."""
    store = ObjectStore(settings.storage_uri)
    ref = store.put_file(f"policies/{version}.safetensors", weights)
    decoder = Decoder(load_model(str(weights.parent), "float32", "cpu"), 2)
    decoder.load(weights)
    token_ids, lengths = np.arange(3, 33, dtype=np.int32), np.array([10, 20], dtype=np.int32)
    values: dict[str, Any] = {
        "run_id": settings.run.name,
        "version": version,
        "step": version,
        "stage": "rl",
        "stage_index": 0,
        "weights": WeightsRef(uri=ref.uri, sha256=ref.sha256, size_bytes=ref.size_bytes),
        "canary": Canary(token_ids=token_ids, lengths=lengths, logprobs=decoder.score(token_ids, lengths)),
        "checkpoint_uri": "file:///nowhere",
    }
    return Policy(**(values | changes))


class Bench:
    """Sends what the other services would, and reads what came back."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.names = TopicNames(settings.bus.namespace)
        self.producer = TypedProducer(settings, "bench")
        self._readers: dict[str, LogReader] = {}
        self._seen: dict[str, list[tuple[Message, Headers]]] = {}

    async def announce(self, policy: Policy) -> None:
        await self.producer.send(self.names.policies, policy)

    async def schedule(self, *tasks: Task) -> None:
        for task in tasks:
            headers = Headers(attempt=task.attempt, deadline_ms=task.deadline_ms)
            await self.producer.send(self.names.tasks(task.workload, task.priority), task, headers)

    async def read(
        self, topic: str, until: Callable[[Sequence[tuple[Message, Headers]]], bool], timeout_s: float = 20.0
    ) -> list[tuple[Message, Headers]]:
        """Everything on `topic` so far, once `until` of it holds."""
        reader = self._readers.setdefault(topic, LogReader(self.settings, "rollout", [topic]))
        seen = self._seen.setdefault(topic, [])
        ends = time.monotonic() + timeout_s
        while not until(seen):
            assert time.monotonic() < ends, f"{topic}: {len(seen)} records in {timeout_s} s: {seen[-3:]}"
            seen.extend((d.message, d.headers) for d in await reader.poll(0.2))
        return list(seen)

    async def trajectories(self, count: int, priority: str = "normal", timeout_s: float = 20.0) -> list[Any]:
        topic = self.names.trajectories("single_turn", priority)
        return [m for m, _ in await self.read(topic, lambda seen: len(seen) >= count, timeout_s)]

    async def heartbeat(self, until: Callable[[Any], bool], timeout_s: float = 20.0) -> Any:
        """The first heartbeat of which `until` holds."""
        seen = await self.read(self.names.workers, lambda seen: any(until(m) for m, _ in seen), timeout_s)
        return next(message for message, _ in seen if until(message))

    async def close(self) -> None:
        for reader in self._readers.values():
            await reader.close()
        await self.producer.close()


@asynccontextmanager
async def serving(settings: Settings) -> AsyncIterator[tuple[Bench, asyncio.Event, asyncio.Task[None]]]:
    """A rollout service in this loop; stopped at the end. What it raised is raised."""
    from services.rollout.service import run

    bench, stop = Bench(settings), asyncio.Event()
    service = asyncio.create_task(run(settings, "rollout-0", stop))
    try:
        yield bench, stop, service
    finally:
        stop.set()
        try:
            await service
        finally:
            await bench.close()
