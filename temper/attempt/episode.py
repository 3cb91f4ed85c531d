"""Attempts at one instance, from the task to the verdict.

Invariant: the task is the one that the scheduler would make of the settings, the attempt is made by the rollout
service's code and judged by the verifier's: what is seen here is what a run does, without a broker in between.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from services.rollout.chat import ChatCodec
from services.rollout.engines.base import GenerateRequest, Generation
from services.rollout.engines.listening import generate
from services.rollout.single_turn import SingleTurn
from services.rollout.turns.work import TurnsWork
from services.scheduler.evaluations import EvaluationTask, RunningEvaluation
from services.scheduler.tasks import TaskBuilder
from services.verifier.budget import allowance
from services.verifier.rewards import Signature, fault_of_rollout, faulted, judged
from shared.contracts import Reward, Task, ToolCall, Trajectory
from shared.domains.registry import load_domains
from shared.errors import TemperError
from shared.settings import Settings
from shared.telemetry.tracing import Tracing
from shared.verification.checks import Checks
from shared.verification.children import ChildPool
from shared.verification.faults import fault_verdict
from shared.verification.jails import Jails, machine_budget
from shared.verification.judgement import Attempt
from shared.verification.registered import registered, sandbox_here

WORKER = "attempt"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be attempted. None: as the settings have it."""

    domain: str
    seed: int
    samples: int = 1
    temperature: float | None = None
    turns: int | None = None
    context_tokens: int | None = None
    wall_s: float | None = None


@dataclass(frozen=True, slots=True)
class Watching:
    """Who sees an attempt while it is made: each request, its tokens, its end, and each tool call."""

    asked: Callable[[GenerateRequest], None] = lambda request: None
    heard: Callable[[int], None] = lambda token: None
    said: Callable[[Generation], None] = lambda made: None
    told: Callable[[ToolCall], None] = lambda call: None


class _Watched:
    """An engine that somebody watches; everything else is the engine's own."""

    def __init__(self, engine: Any, watching: Watching) -> None:
        self._engine = engine
        self._watching = watching

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def generate(self, request: GenerateRequest) -> Generation:
        self._watching.asked(request)
        made = await generate(self._engine, request, self._watching.heard)
        self._watching.said(made)
        return made


def task_of(settings: Settings, wanted: Wanted) -> Task:
    """The task of one held-out evaluation, with what is wanted changed. Raises `ConfigError`."""
    domains = load_domains([wanted.domain])
    name = domains[wanted.domain].name
    evaluation = RunningEvaluation("attempt", 0, 0, 0, {}, time.time(), 0.0, 1)
    item = EvaluationTask(f"attempt-{name}-{wanted.seed}", wanted.domain, wanted.seed, 1)
    task = TaskBuilder(settings, domains).evaluation(item, evaluation, int(time.time() * 1000))
    temperature = wanted.temperature
    if temperature is None:
        temperature = 0.0 if wanted.samples == 1 else 1.0
    sampling = task.sampling.model_copy(
        update={"samples": wanted.samples, "group_size": wanted.samples, "temperature": temperature}
    )
    limits = task.limits.model_copy(
        update={
            "turns": wanted.turns or task.limits.turns,
            "context_tokens": wanted.context_tokens or task.limits.context_tokens,
            "wall_seconds": wanted.wall_s or task.limits.wall_seconds,
        }
    )
    return task.model_copy(update={"sampling": sampling, "limits": limits, "deadline_ms": 0})


async def attempt(
    settings: Settings, task: Task, engine: Any, codec: ChatCodec, watching: Watching | None = None
) -> list[Trajectory]:
    """One trajectory a sample, in the order of the samples. Raises what the rollout's own attempt raises."""
    found: list[Trajectory] = []

    async def send(trajectory: Trajectory) -> None:
        found.append(trajectory)

    async def served(version: int) -> int:
        return version

    watching = watching or Watching()
    watched, tracing = _Watched(engine, watching), Tracing.off()
    turns = TurnsWork(
        settings, watched, codec,
        tracing=tracing, worker_id=WORKER, wait_for_policy=served, told=watching.told,
    )  # fmt: skip
    try:
        if turns.takes(task):
            await turns.attempt(task, send)
        else:
            await SingleTurn(watched, codec, tracing, settings.run.seed, WORKER, served).attempt(task, send)
    finally:
        await turns.close()
    return sorted(found, key=lambda trajectory: trajectory.slot.sample_index)


async def verify(settings: Settings, domain: str, trajectories: list[Trajectory]) -> list[Reward]:
    """The reward of each. A check that cannot be made is a reward with a fault, never an exception."""
    jails = Jails(
        lambda: sandbox_here(settings.sandbox),
        machine_budget(settings.verifier.sandbox_cpus, settings.verifier.sandbox_memory_mb),
    )
    pool = ChildPool([domain])
    await pool.start()
    try:
        checks = Checks(pool, jails, registered)
        return list(await asyncio.gather(*(_reward(settings, checks, one) for one in trajectories)))
    finally:
        await pool.close()
        await jails.aclose()


async def _reward(settings: Settings, checks: Checks, trajectory: Trajectory) -> Reward:
    now_ms = int(time.time() * 1000)
    by = Signature(WORKER, "", now_ms)
    fault = fault_of_rollout(trajectory)
    if fault:
        return faulted(trajectory, "infrastructure", fault, by)
    try:
        left = Attempt(trajectory.final_answer, trajectory.artifacts)
        checked = await checks.check(trajectory.domain, left, allowance(settings.verifier, 0, now_ms))
    except TemperError as error:
        return faulted(trajectory, fault_verdict(error), str(error), by)
    return judged(trajectory, checked, by)
