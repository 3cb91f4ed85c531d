"""One engine, its service, and what the other services would send and read."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.figures import children
from services.rollout.chat import ChatCodec
from services.rollout.engines.gated import GatedEngine
from services.rollout.service import RolloutService
from shared.bus.producer import TypedProducer
from shared.bus.reader import LogReader
from shared.bus.topics import TopicNames
from shared.contracts import ChatMessage, DomainRef, Limits, Sampling, Task, Trajectory
from shared.settings import Settings

SAMPLES = 8
BATCH = 64
PATIENCE_S = 60.0
"""In which no token is sampled and no trajectory comes: what is missing then is lost."""


@dataclass
class Rig:
    """`service` runs until the block of `rig` ends; the engine serves no policy at first."""

    settings: Settings
    engine: GatedEngine
    llm: Any
    codec: ChatCodec
    producer: TypedProducer
    reader: LogReader
    service: asyncio.Task[None]
    sent: int = 0

    def task(self, number: int, max_tokens: int) -> Task:
        """Another question and another answer length for each number."""
        self.sent += 1
        question = f"Write about the number {number} and what it is good for."
        return Task(
            run_id=self.settings.run.name,
            group_id=f"0-rl-{self.sent:07d}",
            stage="rl",
            stage_index=0,
            domain=DomainRef(name="arithmetic", version=1, seed=number),
            workload="single_turn",
            priority="normal",
            purpose="train",
            messages=(ChatMessage(role="user", content=question),),
            limits=Limits(wall_seconds=3600.0),  # a crowded machine is no reason to lose an attempt
            sampling=Sampling(samples=SAMPLES, group_size=SAMPLES, max_tokens=max_tokens),
            created_ms=int(time.time() * 1000),
        )

    async def send(self, tasks: Sequence[Task]) -> None:
        topic = TopicNames(self.settings.bus.namespace).tasks("single_turn", "normal")
        await asyncio.gather(*(self.producer.send(topic, task) for task in tasks))

    async def trajectories(self, count: int) -> list[Trajectory]:
        """The next `count`, or as many as come. Raises what ended the service."""
        found: list[Trajectory] = []
        sampled, heard = -1, time.monotonic()
        while len(found) < count and time.monotonic() - heard < PATIENCE_S:
            before, sampled = sampled, self.engine.capacity().sampled_tokens
            heard = time.monotonic() if sampled != before else heard
            if self.service.done():
                self.service.result()
                raise SystemExit("benchmark: the rollout service has left")
            for delivery in await self.reader.poll(0.1):
                heard = time.monotonic()
                if isinstance(delivery.message, Trajectory):
                    found.append(delivery.message)
        return found

    def cpu_seconds(self) -> dict[str, float]:
        """Since the start: of vLLM's processes, and of this one, which is service, bare client and the others' part."""
        engine = [process.pid for process in self.llm.engine_core.resources.engine_manager.processes]
        members = {pid for one in engine for pid in (one, *children(one))}
        return {"engine": sum(map(_cpu_seconds, members)), "here": _cpu_seconds(os.getpid())}


@contextlib.asynccontextmanager
async def rig(settings: Settings) -> AsyncIterator[Rig]:
    from services.rollout.engines.vllm import VllmEngine
    from services.rollout.engines.vllm_leg import open_llm
    from services.rollout.engines.vllm_stats import RoomStats

    stats, names = RoomStats(), TopicNames(settings.bus.namespace)
    llm = await asyncio.to_thread(open_llm, settings, stats)
    codec = ChatCodec.open(settings.model.path)
    engine = GatedEngine(VllmEngine(llm, settings, stats), "in_flight")
    producer = TypedProducer(settings, "bench")
    reader = LogReader(settings, "rollout", [names.trajectories("single_turn", "normal")])
    stop = asyncio.Event()
    service = asyncio.create_task(RolloutService(settings, "rollout-0", engine, codec).run(stop))
    try:
        yield Rig(settings, engine, llm, codec, producer, reader, service)
    finally:
        stop.set()
        await asyncio.gather(service, return_exceptions=True)
        await reader.close()
        await producer.close()


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
