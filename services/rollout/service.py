"""The rollout process: tasks in, trajectories out, with the newest attested policy.

Invariant: a task's offset is committed only after a trajectory for each of its slots was acknowledged; nothing is
sampled before a policy was attested, and nothing after one could not be. The process ends with 0 when its run ends
or when it is asked to, having drained.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Final

from services.rollout.adapting import Adapting
from services.rollout.chat import ChatCodec
from services.rollout.engines.base import Engine, EngineLoad
from services.rollout.engines.gated import GatedEngine
from services.rollout.handing_back import HandingBack
from services.rollout.opening import open_and_say_so
from services.rollout.policies import PolicyFollower
from services.rollout.single_turn import SingleTurn
from services.rollout.turns.work import TurnsWork
from shared.bus.delivery import Delivery
from shared.bus.service_frame import ServiceFrame
from shared.bus.subscriptions import task_subscriptions
from shared.contracts import Headers, Task, Trajectory
from shared.settings import Settings
from shared.stopping import unless

SERVICE: Final = "rollout"
HAND_BACK_S: Final = 5.0
"""Of the drain, at its end: a decode step, the cut's grace and an acknowledged send."""


class RolloutService:
    """One rollout process of one run. `engine` and `codec` are open and are closed by `run`."""

    def __init__(self, settings: Settings, worker_id: str, engine: Engine, codec: ChatCodec) -> None:
        workloads = settings.rollout.workloads
        self._engine = engine
        self._adapting = Adapting(settings, engine.capacity)
        self._frame: ServiceFrame[Task] = ServiceFrame(
            settings,
            SERVICE,
            worker_id,
            kind=Task,
            group_of=lambda task: task.group_id,
            subscriptions=task_subscriptions(settings, workloads),
            workloads=workloads,
            concurrency=settings.rollout.concurrency,
            opens="the control topic",
            idles="tasks",
            closed=self._adapting.closed,
        )
        frame = self._frame
        self._follower = PolicyFollower(settings, engine, frame.producer)
        self._handing_back = None if settings.rollout.hand_back == "never" else HandingBack(self._resend)
        if self._handing_back and settings.rollout.hand_back == "publish" and isinstance(engine, GatedEngine):
            engine.before_hold = self._handing_back.at_a_publish
        self._drain_s = settings.bus.drain_s
        self._stop = asyncio.Event()
        self._single_turn = SingleTurn(
            engine,
            codec,
            frame.tracing,
            settings.run.seed,
            worker_id,
            self._follower.at_least,
            self._handing_back,
        )
        self._turns = TurnsWork(
            settings, engine, codec,
            tracing=frame.tracing, worker_id=worker_id, wait_for_policy=self._follower.at_least,
            handing_back=self._handing_back,
        )  # fmt: skip
        self._rate = _Rate(engine.capacity())

    async def run(self, stop: asyncio.Event) -> None:
        """Attempt tasks until `stop` is set or the run has ended. Raises `AttestationError`, `StorageError`."""
        self._stop = stop
        await self._frame.run(self, stop)

    async def open(self) -> None:
        """The engine is open already."""

    async def close(self) -> None:
        await self._turns.close()
        await asyncio.to_thread(self._engine.close)

    def beside(self) -> Sequence[Coroutine[Any, Any, None]]:
        works = [self._follower.run(), self._adapting.run(self._frame.running, self._frame.look_again)]
        if self._handing_back is not None:
            patience_s = self._drain_s - min(HAND_BACK_S, self._drain_s / 2)
            works.append(self._handing_back.at_the_end(self._stop, patience_s))
        return works

    async def handle(self, delivery: Delivery[Task]) -> None:
        """One task to its trajectories."""
        task = delivery.message
        work = self._turns if self._turns.takes(task) else self._single_turn
        with self._span(delivery):
            await self._unless_over(work.attempt(task, self._send))

    async def _unless_over(self, attempt: Any) -> None:
        """Runs to its end, or is dropped when the run ends: what is still sampled then is nobody's."""
        work = asyncio.ensure_future(attempt)
        over = asyncio.ensure_future(self._frame.watcher.ended.wait())
        try:
            await asyncio.wait({work, over}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
        finally:
            work.cancel()
            over.cancel()
            await asyncio.gather(work, over, return_exceptions=True)

    async def give_up(self, delivery: Delivery[Task], error: Exception) -> None:
        """After the last retry: a terminal word for every slot, so that the group can complete."""
        with self._span(delivery):
            reason = f"not attempted after {delivery.attempt} deliveries: {error}"
            await self._single_turn.give_up(delivery.message, reason, self._send)

    async def _send(self, trajectory: Trajectory) -> None:
        topic = self._frame.names.trajectories(trajectory.workload, trajectory.priority)
        headers = Headers(
            policy_version=trajectory.last_version,
            attempt=trajectory.attempt,
            deadline_ms=trajectory.deadline_ms,
        )
        await self._frame.producer.send(topic, trajectory, headers)

    async def _resend(self, task: Task) -> None:
        topic = self._frame.names.tasks(task.workload, task.priority)
        await self._frame.producer.send(
            topic, task, Headers(attempt=task.attempt, deadline_ms=task.deadline_ms)
        )

    def _span(self, delivery: Delivery[Task]) -> contextlib.AbstractContextManager[Any]:
        task = delivery.message
        return self._frame.tracing.span(
            "attempt",
            parent=delivery.headers,
            kind="consumer",
            attributes={
                "temper.group_id": task.group_id,
                "temper.task": f"{task.group_id}/{task.attempt}",
                "temper.domain": task.domain.name,
                "temper.stage": task.stage,
                "temper.purpose": task.purpose,
                "temper.delivery": delivery.attempt,
            },
        )

    @property
    def policy_version(self) -> int:
        return self._follower.version

    def waits_for(self) -> str:
        trouble = f" ({self._follower.trouble})" if self._follower.trouble else ""
        if self._follower.version < 0:
            return f"the first policy{trouble}"
        wanted = self._follower.oldest_wait()
        return "" if wanted is None else f"policy {wanted}{trouble}"

    def ready(self) -> Mapping[str, Any]:
        return {"engine": self._engine.name}

    def gauges(self) -> Mapping[str, float]:
        load = self._engine.capacity()
        return {
            "tokens_per_second": self._rate.measure(load, time.monotonic()),
            "sampled_tokens": load.sampled_tokens,
            "decode_steps": load.decode_steps,
            "batch_running": load.running,
            "batch_waiting": load.waiting,
            "batch_occupancy": load.running / load.max_batch,
            "policy_load_seconds": self._follower.load_seconds,
            "policy_moved_bytes": self._follower.moved_bytes,
            "sandbox_sessions": self._turns.sessions,
            "handed_back": 0 if self._handing_back is None else self._handing_back.count,
            **self._adapting.gauges(),
        }


class _Rate:
    """Sampled tokens a second between two looks."""

    def __init__(self, load: EngineLoad) -> None:
        self._tokens = load.sampled_tokens
        self._at = time.monotonic()

    def measure(self, load: EngineLoad, now: float) -> float:
        elapsed, tokens = now - self._at, load.sampled_tokens - self._tokens
        self._tokens, self._at = load.sampled_tokens, now
        return tokens / elapsed if elapsed > 0 else 0.0


async def run(settings: Settings, worker_id: str, stop: asyncio.Event) -> None:
    """Runs a rollout of `settings.run` until the run has ended (returns) or `stop` is set.

    Whoever is asked to stop while the model is loaded stops at once: there is nothing to drain.
    """
    parts = await unless(stop, open_and_say_so(settings, worker_id))
    if parts is not None:
        engine, codec = parts
        await RolloutService(settings, worker_id, engine, codec).run(stop)
