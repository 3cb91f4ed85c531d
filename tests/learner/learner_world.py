"""The learner process on a broker, beside somebody who stands for all others."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from learner_builders import reward, sequence, trajectory

from services.learner.process import LearnerService
from shared.bus.producer import TypedProducer
from shared.bus.reader import LogReader
from shared.bus.topics import TopicNames
from shared.contracts import Control, Headers, Message, Policy, Step, Trajectory
from shared.settings import Settings
from shared.storage import ObjectStore

STAGES = [
    {"kind": "sft", "steps": 1, "groups_per_step": 2, "learning_rate": 1e-2},
    {"kind": "rl", "steps": 2, "groups_per_step": 2, "group_size": 2, "learning_rate": 1e-2},
]
TRACE = "00-{:032x}-{:016x}-01"


class World:
    """Stands for rollout, verifier and scheduler: writes their records, reads the learner's."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.names = TopicNames(settings.bus.namespace)
        self.producer = TypedProducer(settings, "world", ObjectStore(settings.storage_uri))
        topics = [self.names.policies, self.names.steps, self.names.workers, self.names.control]
        self.reader = LogReader(settings, "scheduler", topics)
        self.seen: list[Message] = []
        self._trace = 0

    async def attempt(self, made: Trajectory, value: float | None = None) -> None:
        """A trajectory, and its reward unless it is a demonstration."""
        made = self._ours(made)
        self._trace += 1
        headers = Headers(purpose=made.purpose, traceparent=TRACE.format(self._trace, self._trace))
        topic = self.names.trajectories("single_turn", "normal")
        await self.producer.send(topic, made, headers)
        if value is not None:
            await self.producer.send(self.names.rewards, reward(made, value), headers)

    def _ours(self, made: Trajectory) -> Trajectory:
        slot = made.slot.model_copy(update={"run_id": self.settings.run.name})
        return made.model_copy(update={"slot": slot})

    async def group(
        self,
        index: int,
        version: int,
        stage: int = 1,
        values: tuple[float, ...] = (0.0, 1.0),
        attempt: int = 1,
    ) -> None:
        for sample, value in enumerate(values):
            made = trajectory(
                f"{stage}-rl-{index:07d}",
                sample,
                name=f"{stage}-rl-{index:07d}/{sample}/{attempt}",
                attempt=attempt,
                stage_index=stage,
                version=version,
                sequences=(sequence([1, 2, 3], [4 + sample, 5], [-3.0, -3.0], version=version),),
            )
            await self.attempt(made, value)

    async def end(self) -> None:
        await self.producer.send(self.names.control, Control(run_id=self.settings.run.name, kind="end"))

    async def until(
        self, condition: Callable[[list[Message]], bool], what: str, timeout_s: float = 20.0
    ) -> None:
        until = asyncio.get_running_loop().time() + timeout_s
        while not condition(self.seen):
            assert asyncio.get_running_loop().time() < until, f"{what}; seen: {Counter(map(type, self.seen))}"
            self.seen += [delivery.message for delivery in await self.reader.poll(0.1)]

    def of(self, kind: type[Any]) -> list[Any]:
        return [message for message in self.seen if isinstance(message, kind)]

    async def close(self) -> None:
        await self.reader.close()
        await self.producer.close()


async def with_learner(settings: Settings, script: Callable[[World], Awaitable[None]]) -> World:
    """Runs a learner beside `script`; the script's failure and the learner's are both raised."""
    world, stop = World(settings), asyncio.Event()
    learner = asyncio.create_task(LearnerService(settings, "learner-0").run(stop))
    acting = asyncio.ensure_future(script(world))
    try:
        done, _ = await asyncio.wait([learner, acting], return_when=asyncio.FIRST_COMPLETED)
        if acting in done:
            acting.result()
            stop.set()
        await learner
    finally:
        stop.set()
        acting.cancel()
        await asyncio.gather(learner, acting, return_exceptions=True)
        await world.close()
    return world


def versions(seen: list[Message]) -> list[int]:
    return [message.version for message in seen if isinstance(message, Policy)]


def steps(seen: list[Message]) -> list[int]:
    return [message.step for message in seen if isinstance(message, Step)]
