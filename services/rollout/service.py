"""The rollout process: tasks in, trajectories out, with the newest attested policy.

Invariant: a task's offset is committed only after a trajectory for each of its slots was acknowledged; nothing is
sampled before a policy was attested, and nothing after one could not be. The process ends with 0 when its run ends
or when it is asked to, having drained.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

import structlog

from services.rollout.chat import ChatCodec
from services.rollout.engines.base import Engine, EngineLoad
from services.rollout.opening import open_and_say_so
from services.rollout.policies import PolicyFollower
from services.rollout.single_turn import SingleTurn
from shared.bus.control import ControlWatcher
from shared.bus.delivery import Delivery
from shared.bus.heartbeat import HeartbeatLoop
from shared.bus.producer import TypedProducer
from shared.bus.subscriptions import group_name, task_subscriptions
from shared.bus.topics import TopicNames
from shared.bus.worker import Worker
from shared.contracts import Headers, Heartbeat, Task, Trajectory, WorkerState
from shared.errors import ContractError
from shared.settings import Settings
from shared.stopping import unless
from shared.storage import ObjectStore
from shared.telemetry.tracing import Tracing

SERVICE = "rollout"


class RolloutService:
    """One rollout process of one run. `engine` and `codec` are open and are closed by `run`."""

    def __init__(self, settings: Settings, worker_id: str, engine: Engine, codec: ChatCodec) -> None:
        self._settings = settings
        self._worker_id = worker_id
        self._run_id = settings.run.name
        self._log = structlog.get_logger()
        self._names = TopicNames(settings.bus.namespace)
        self._engine = engine
        self._tracing = Tracing.start(settings, SERVICE, worker_id)
        store = ObjectStore(settings.storage_uri)
        self._producer = TypedProducer(settings, worker_id, store)
        self._watcher = ControlWatcher(settings, SERVICE)
        self._follower = PolicyFollower(settings, engine, store, self._producer)
        self._single_turn = SingleTurn(
            engine, codec, self._tracing, settings.run.seed, worker_id, self._follower.at_least
        )
        workloads = settings.rollout.workloads
        self._worker = Worker(
            settings,
            SERVICE,
            worker_id,
            task_subscriptions(settings, workloads),
            self._attempt,
            self._producer,
            concurrency=settings.rollout.concurrency,
            group=group_name(settings, SERVICE, workloads),
            on_exhausted=self._give_up,
            accept=self._accept,
        )
        self._state: WorkerState = "starting"
        self._failure = ""
        self._rate = _Rate(engine.capacity())

    async def run(self, stop: asyncio.Event) -> None:
        """Attempt tasks until `stop` is set or the run has ended. Raises `AttestationError`, `StorageError`."""
        heartbeat = HeartbeatLoop(
            self._producer, self._names.workers, self._heartbeat, self._settings.telemetry.heartbeat_s
        )
        leave = asyncio.Event()
        beating = asyncio.create_task(heartbeat.run(asyncio.Event()))
        following = asyncio.create_task(self._follower.run())
        watching = asyncio.create_task(self._watcher.watch())
        leaving = asyncio.create_task(self._leave_in_time(stop, leave, following, watching))
        try:
            await self._know_the_run(leave)
            await self._worker.run(leave)
            for task in (following, watching):
                if task.done():
                    task.result()
            self._state = "stopped"
        except BaseException as error:
            self._state, self._failure = "failed", str(error)
            raise
        finally:
            for task in (beating, following, watching, leaving):
                task.cancel()
            await asyncio.gather(beating, following, watching, leaving, return_exceptions=True)
            await asyncio.to_thread(self._engine.close)
            await self._producer.close()
            self._tracing.shutdown()

    async def _know_the_run(self, leave: asyncio.Event) -> None:
        """Nothing is sampled before it is known whether the run has ended and which groups were given up."""
        await self._watcher.known(leave)
        if not leave.is_set():
            self._state = "idle"
            self._log.info("rollout.ready", engine=type(self._engine).__name__)

    async def _leave_in_time(
        self, stop: asyncio.Event, leave: asyncio.Event, *beside: asyncio.Task[None]
    ) -> None:
        """Sets `leave` when somebody asks, when the run ends, or when what runs beside the worker broke."""
        await self._watcher.over(stop, beside)
        self._state = "draining"
        broken = next((task.exception() for task in beside if task.done()), None)
        if broken is not None:
            self._state, self._failure = "failed", str(broken)
        reason = self._failure or self._watcher.reason or ("asked to" if stop.is_set() else "")
        self._log.info("rollout.leaving", reason=reason)
        leave.set()

    def _accept(self, headers: Headers) -> bool:
        return headers.run_id == self._run_id

    async def _attempt(self, delivery: Delivery[Any]) -> None:
        """One task to its trajectories; returns early where nobody wants them any more."""
        task = delivery.message
        if not isinstance(task, Task):
            raise ContractError(
                f"{delivery.position} holds a {task.SCHEMA}: {delivery.topic} is for tasks only"
            )
        if task.group_id in self._watcher.abandoned:
            return
        with self._span(delivery, task):
            await self._unless_over(self._single_turn.attempt(task, self._send))

    async def _unless_over(self, attempt: Any) -> None:
        """Runs to its end, or is dropped when the run ends: what is still sampled then is nobody's."""
        work = asyncio.ensure_future(attempt)
        over = asyncio.ensure_future(self._watcher.ended.wait())
        try:
            await asyncio.wait({work, over}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
        finally:
            work.cancel()
            over.cancel()
            await asyncio.gather(work, over, return_exceptions=True)

    async def _give_up(self, delivery: Delivery[Any], error: Exception) -> None:
        """After the last retry: a terminal word for every slot, so that the group can complete."""
        task = delivery.message
        if isinstance(task, Task):
            with self._span(delivery, task):
                reason = f"not attempted after {delivery.attempt} deliveries: {error}"
                await self._single_turn.give_up(task, reason, self._send)

    async def _send(self, trajectory: Trajectory) -> None:
        topic = self._names.trajectories(trajectory.workload, trajectory.priority)
        headers = Headers(
            policy_version=trajectory.last_version,
            attempt=trajectory.attempt,
            deadline_ms=trajectory.deadline_ms,
        )
        await self._producer.send(topic, trajectory, headers)

    def _span(self, delivery: Delivery[Any], task: Task) -> contextlib.AbstractContextManager[Any]:
        return self._tracing.span(
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

    def _heartbeat(self) -> Heartbeat:
        stats = self._worker.stats()
        load = self._engine.capacity()
        state, waits_for = self._condition(stats)
        return Heartbeat(
            run_id=self._run_id,
            worker_id=self._worker_id,
            service="rollout",
            state=state,
            waits_for=waits_for,
            policy_version=self._follower.version,
            in_flight=stats.in_flight,
            processed=stats.processed,
            failures=stats.failures,
            lag=stats.lag,
            gauges={
                "tokens_per_second": self._rate.measure(load, time.monotonic()),
                "sampled_tokens": load.sampled_tokens,
                "decode_steps": load.decode_steps,
                "batch_running": load.running,
                "batch_waiting": load.waiting,
                "batch_occupancy": load.running / load.max_batch,
                "policy_load_seconds": self._follower.load_seconds,
                "partitions": stats.partitions,
                "retried": stats.retried,
                "dead": stats.dead,
                "skipped": stats.skipped,
            },
        )

    def _condition(self, stats: Any) -> tuple[WorkerState, str]:
        """State, and in words what it waits for."""
        if self._failure:
            return "failed", self._failure
        if self._state == "starting":
            return "starting", "the control topic"
        if stats.blocked or stats.problem:
            return "waiting", stats.problem or stats.blocked[0]
        if self._state != "idle":
            return self._state, ""
        if self._follower.version < 0:
            return "waiting", "the first policy"
        wanted = self._follower.oldest_wait()
        if wanted is not None:
            return "waiting", f"policy {wanted}"
        return ("working", "") if stats.in_flight else ("idle", "tasks")


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
