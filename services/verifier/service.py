"""The verifier process: trajectories in, rewards out.

Invariant: every trajectory of the run that was sampled gets exactly one terminal word per delivery chain: a verdict,
or after the last retry a fault without a number. The offset of a trajectory is committed only after its reward was
acknowledged. The process ends with 0 when its run ends or when it is asked to, having drained.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import time
from typing import Any

import structlog
from opentelemetry.trace import Span

from services.verifier.rewards import Signature, fault_of_rollout, faulted, judged, needs_no_reward
from shared.bus.control import ControlWatcher
from shared.bus.delivery import Delivery
from shared.bus.heartbeat import HeartbeatLoop
from shared.bus.producer import TypedProducer
from shared.bus.subscriptions import group_name, trajectory_subscriptions
from shared.bus.topics import TopicNames
from shared.bus.worker import Worker
from shared.contracts import Headers, Heartbeat, Reward, Trajectory, WorkerState
from shared.errors import ContractError
from shared.settings import Settings
from shared.storage import ObjectStore
from shared.telemetry.tracing import Tracing
from shared.verification.children import ChildPool
from shared.verification.faults import fault_verdict
from shared.verification.judgement import Attempt

SERVICE = "verifier"


class VerifierService:
    """One verifier process of one run."""

    def __init__(self, settings: Settings, worker_id: str) -> None:
        self._settings = settings
        self._worker_id = worker_id
        self._run_id = settings.run.name
        self._version = _version()
        self._log = structlog.get_logger()
        self._names = TopicNames(settings.bus.namespace)
        self._tracing = Tracing.start(settings, SERVICE, worker_id)
        self._producer = TypedProducer(settings, worker_id, ObjectStore(settings.storage_uri))
        self._watcher = ControlWatcher(settings, SERVICE)
        self._pool = ChildPool(
            (domain.name for domain in settings.domains), children=settings.verifier.children
        )
        workloads = settings.verifier.workloads
        self._worker = Worker(
            settings,
            SERVICE,
            worker_id,
            trajectory_subscriptions(settings, workloads),
            self._verify,
            self._producer,
            concurrency=settings.verifier.concurrency,
            group=group_name(settings, SERVICE, workloads),
            on_exhausted=self._give_up,
            accept=self._accept,
        )
        self._state: WorkerState = "starting"
        self._waits_for = "its checking children"
        self._verdicts: dict[str, int] = {}

    async def run(self, stop: asyncio.Event) -> None:
        """Verify until `stop` is set or the run has ended. Raises `ConfigError` for domains it cannot load."""
        heartbeat = HeartbeatLoop(
            self._producer, self._names.workers, self._heartbeat, self._settings.telemetry.heartbeat_s
        )
        leave = asyncio.Event()
        beside = [
            asyncio.create_task(heartbeat.run(asyncio.Event())),
            asyncio.create_task(self._watcher.watch()),
        ]
        beside.append(asyncio.create_task(self._leave_in_time(stop, leave, beside[:2])))
        try:
            await self._pool.start()
            await self._know_the_run(leave)
            await self._worker.run(leave)
            for task in beside:
                if task.done():
                    task.result()
            self._state = "stopped"
        except BaseException:
            self._state = "failed"
            raise
        finally:
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)
            await self._pool.close()
            await self._producer.close()
            self._tracing.shutdown()

    async def _know_the_run(self, leave: asyncio.Event) -> None:
        """Nothing is checked before it is known whether the run has ended and which groups were given up."""
        self._waits_for = "the control topic"
        await self._watcher.known(leave)
        if not leave.is_set():
            self._state, self._waits_for = "idle", "trajectories"
            self._log.info("verifier.ready", domains=[domain.name for domain in self._settings.domains])

    async def _leave_in_time(
        self, stop: asyncio.Event, leave: asyncio.Event, beside: list[asyncio.Task[None]]
    ) -> None:
        """Sets `leave` when somebody asks, when the run ends, or when what runs beside the worker broke."""
        await self._watcher.over(stop, beside)
        self._state = "draining"
        self._log.info(
            "verifier.leaving", reason=self._watcher.reason or ("asked to" if stop.is_set() else "")
        )
        leave.set()

    def _accept(self, headers: Headers) -> bool:
        return headers.run_id == self._run_id

    async def _verify(self, delivery: Delivery[Any]) -> None:
        """One trajectory to its reward. What it raises is a fault of ours, and is tried again later."""
        trajectory = delivery.message
        if not isinstance(trajectory, Trajectory):
            raise ContractError(
                f"{delivery.position} holds a {trajectory.SCHEMA}: {delivery.topic} is for trajectories only"
            )
        if needs_no_reward(trajectory) or trajectory.slot.group_id in self._watcher.abandoned:
            return
        with self._span(delivery, trajectory) as span:
            fault = fault_of_rollout(trajectory)
            if fault:
                reward = faulted(trajectory, "infrastructure", fault, self._signature(delivery))
            else:
                attempt = Attempt(trajectory.final_answer, trajectory.artifacts)
                budget_s = self._settings.verifier.check_seconds
                checked = await self._pool.check(trajectory.domain, attempt, budget_s)
                reward = judged(trajectory, checked, self._signature(delivery))
            await self._send(reward, span)

    async def _give_up(self, delivery: Delivery[Any], error: Exception) -> None:
        """After the last retry: a terminal fault, so that the group can complete without this attempt."""
        trajectory = delivery.message
        if not isinstance(trajectory, Trajectory):
            return
        with self._span(delivery, trajectory) as span:
            reason = f"not judged after {delivery.attempt} attempts: {error}"
            await self._send(
                faulted(trajectory, fault_verdict(error), reason, self._signature(delivery)), span
            )

    async def _send(self, reward: Reward, span: Span) -> None:
        span.set_attribute("temper.verdict", reward.verdict)
        if reward.reward is not None:
            span.set_attribute("temper.reward", reward.reward)
        headers = Headers(policy_version=reward.policy_version)
        await self._producer.send(self._names.rewards, reward, headers)
        self._verdicts[reward.verdict] = self._verdicts.get(reward.verdict, 0) + 1

    def _span(
        self, delivery: Delivery[Any], trajectory: Trajectory
    ) -> contextlib.AbstractContextManager[Span]:
        group = trajectory.slot.group_id
        return self._tracing.span(
            "verify",
            parent=delivery.headers,
            attributes={
                "temper.group_id": group,
                "temper.trajectory_id": trajectory.trajectory_id,
                "temper.task": f"{group}/{trajectory.attempt}",
                "temper.domain": trajectory.domain.name,
                "temper.stage": trajectory.stage,
                "temper.policy_version": trajectory.last_version,
                "temper.delivery": delivery.attempt,
            },
        )

    def _signature(self, delivery: Delivery[Any]) -> Signature:
        return Signature(self._worker_id, self._version, int(time.time() * 1000), delivery.attempt)

    def _heartbeat(self) -> Heartbeat:
        stats = self._worker.stats()
        state = self._state
        waits_for = self._waits_for if state in ("starting", "idle") else ""
        if stats.blocked or stats.problem:
            state, waits_for = "waiting", stats.problem or stats.blocked[0]
        elif state == "idle" and stats.in_flight:
            state, waits_for = "working", ""
        return Heartbeat(
            run_id=self._run_id,
            worker_id=self._worker_id,
            service="verifier",
            state=state,
            waits_for=waits_for,
            in_flight=stats.in_flight,
            processed=stats.processed,
            failures=stats.failures,
            lag=stats.lag,
            gauges={
                "children": len(self._pool.pids),
                "partitions": stats.partitions,
                "retried": stats.retried,
                "dead": stats.dead,
                "skipped": stats.skipped,
                **{f"verdict.{verdict}": count for verdict, count in self._verdicts.items()},
            },
        )


def _version() -> str:
    """Of the installed distribution; `source` where there is none."""
    try:
        return importlib.metadata.version("temper-rl")
    except importlib.metadata.PackageNotFoundError:
        return "source"


async def run(settings: Settings, worker_id: str, stop: asyncio.Event) -> None:
    """Runs a verifier of `settings.run` until the run has ended (returns) or `stop` is set."""
    await VerifierService(settings, worker_id).run(stop)
