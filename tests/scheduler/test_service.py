"""The scheduler process against a real broker: it schedules, evaluates, survives restarts, and ends the run."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import numpy as np

from services.scheduler.service import SchedulerService
from shared.bus.producer import TypedProducer
from shared.bus.reader import LogReader
from shared.bus.topics import TopicNames
from shared.contracts import (
    Canary,
    Control,
    Evaluation,
    GroupFate,
    Message,
    Policy,
    Reward,
    Slot,
    Step,
    Task,
    WeightsRef,
)
from shared.settings import Settings


def policy(run_id: str, version: int) -> Policy:
    return Policy(
        run_id=run_id, version=version, step=version, stage="rl", stage_index=0, checkpoint_uri="file:///c",
        weights=WeightsRef(uri="file:///w", sha256="0" * 64, size_bytes=1),
        canary=Canary(token_ids=np.array([1]), lengths=np.array([1]), logprobs=np.array([0.0])),
    )  # fmt: skip


class Others:
    """Plays rollout, verifier and learner by messages only: what it does not answer stays in flight."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.run_id = settings.run.name
        self.names = TopicNames(settings.bus.namespace)
        self.producer = TypedProducer(settings, "others")
        topics = [self.names.tasks("single_turn", p) for p in ("high", "normal", "low")]
        self.reader = LogReader(settings, "learner", [*topics, self.names.control], "earliest")
        self.tasks: list[Task] = []
        self.control: list[Message] = []
        self.step = 0

    async def read_until(self, enough: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not enough():
                for delivery in await self.reader.poll(0.1):
                    message = delivery.message
                    (self.tasks if isinstance(message, Task) else self.control).append(message)  # type: ignore[arg-type]

    async def publish(self, version: int) -> None:
        await self.producer.send(self.names.policies, policy(self.run_id, version))

    async def reward(self, task: Task) -> None:
        message = Reward(
            trajectory_id=f"{task.group_id}/{task.attempt}", domain="arithmetic", domain_version=1, verdict="passed",
            slot=Slot(run_id=self.run_id, group_id=task.group_id, sample_index=0), stage=task.stage, stage_index=0,
            purpose=task.purpose, reward=1.0, policy_version=self.step,
        )  # fmt: skip
        await self.producer.send(self.names.rewards, message)

    async def train(self, tasks: list[Task]) -> None:
        self.step += 1
        groups = tuple(
            GroupFate(group_id=t.group_id, samples=(0, 1), fates=("trained", "trained")) for t in tasks
        )
        await self.publish(self.step)
        message = Step(
            run_id=self.run_id, step=self.step, stage="rl", stage_index=0, stage_step=self.step, groups=groups,
            policy_version=self.step,
        )  # fmt: skip
        await self.producer.send(self.names.steps, message)

    def of(self, purpose: str) -> list[Task]:
        return [task for task in self.tasks if task.purpose == purpose]

    async def close(self) -> None:
        await self.reader.close()
        await self.producer.close()


@asynccontextmanager
async def scheduler(settings: Settings) -> AsyncIterator[asyncio.Task[None]]:
    stop = asyncio.Event()
    running = asyncio.create_task(SchedulerService(settings, "scheduler-0").run(stop))
    try:
        yield running
    finally:
        stop.set()
        await running


def two_steps(make_settings: Callable[..., Settings], **overrides: object) -> Settings:
    return make_settings(
        stages=[{"kind": "rl", "steps": 2, "groups_per_step": 3, "group_size": 2}],
        evaluation={"instances_per_domain": 4},
        scheduler={"max_lag": 0},
        **overrides,
    )


def test_a_run_from_the_first_policy_to_its_end(make_settings: Callable[..., Settings]) -> None:
    settings = two_steps(make_settings)

    async def body() -> None:
        others = Others(settings)
        async with scheduler(settings) as running:
            await others.publish(0)
            await others.read_until(lambda: len(others.of("eval")) == 4)
            assert not others.of("train"), "training waits for the evaluation at the start"
            assert {t.priority for t in others.tasks} == {"high"}
            for task in others.of("eval"):
                await others.reward(task)
            for step in range(2):
                await others.read_until(lambda step=step: len(others.of("train")) == 3 * (step + 1))
                batch = others.of("train")[-3:]
                assert {t.min_policy_version for t in batch} == {step}
                assert all(t.sampling.samples == 2 and not t.demonstration for t in batch)
                await others.train(batch)
            await others.read_until(lambda: len(others.of("eval")) == 8)
            for task in others.of("eval")[4:]:
                await others.reward(task)
            await asyncio.wait_for(running, 20)
        await others.read_until(lambda: any(isinstance(m, Control) for m in others.control))
        results = {m.name: m for m in others.control if isinstance(m, Evaluation)}
        assert {n: r.domains["arithmetic"].passed for n, r in results.items()} == {"start": 4, "0-rl-end": 4}
        assert len({t.group_id for t in others.tasks}) == len(others.tasks)
        await others.close()

    asyncio.run(body())


def test_a_restarted_scheduler_sends_nothing_twice(make_settings: Callable[..., Settings]) -> None:
    settings = two_steps(make_settings)

    async def body() -> None:
        others = Others(settings)
        async with scheduler(settings):
            await others.publish(0)
            await others.read_until(lambda: len(others.of("eval")) == 4)
            for task in others.of("eval")[:2]:
                await others.reward(task)
        async with scheduler(settings):
            for task in others.of("eval")[2:]:
                await others.reward(task)
            await others.read_until(lambda: len(others.of("train")) == 3)
        async with scheduler(settings):
            await others.train(others.of("train"))
            await others.read_until(lambda: len(others.of("train")) == 6)
        counts = Counter(t.group_id for t in others.tasks)
        assert len(counts) == 10 and set(counts.values()) == {1}
        await others.close()

    asyncio.run(body())


def test_an_ended_run_is_left_at_once(make_settings: Callable[..., Settings]) -> None:
    settings = two_steps(make_settings)

    async def body() -> None:
        others = Others(settings)
        await others.publish(0)
        await others.producer.send(
            others.names.control, Control(run_id=others.run_id, kind="end", reason="done")
        )
        await others.producer.send(others.names.control, Control(run_id="another", kind="end", reason="done"))
        await asyncio.wait_for(SchedulerService(settings, "scheduler-0").run(asyncio.Event()), 20)
        await others.read_until(lambda: len(others.control) == 2)
        assert not others.tasks
        await others.close()

    asyncio.run(body())


def test_lost_groups_are_sent_again_and_then_abandoned(make_settings: Callable[..., Settings]) -> None:
    settings = make_settings(
        stages=[{"kind": "rl", "steps": 1, "groups_per_step": 2, "group_size": 2}],
        evaluation={"at_start": False, "instances_per_domain": 1},
        scheduler={"max_lag": 0, "group_deadline_s": 0.5, "max_group_attempts": 2},
    )

    async def body() -> None:
        others = Others(settings)
        async with scheduler(settings):
            await others.publish(0)
            await others.read_until(lambda: any(isinstance(m, Control) for m in others.control))
        assert Counter((t.group_id, t.attempt) for t in others.tasks) == Counter(
            (f"0-rl-{i:07d}", attempt) for i in range(2) for attempt in (1, 2)
        )
        (control,) = (m for m in others.control if isinstance(m, Control))
        assert control.kind == "abandon" and set(control.groups) == {"0-rl-0000000", "0-rl-0000001"}
        await others.close()

    asyncio.run(body())
