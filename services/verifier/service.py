"""The verifier process: trajectories in, rewards out.

Invariant: every trajectory of the run that was sampled gets exactly one terminal word per delivery chain: a verdict,
or after the last retry a fault without a number (and none once its task's deadline has passed: the group's next
attempt must find its slots empty). The offset of a trajectory is committed only after its reward was acknowledged.
The process ends with 0 when its run ends or when it is asked to, having drained.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import time
from collections import Counter
from collections.abc import Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Final

import structlog
from opentelemetry.trace import Span

from services.verifier.auditor.auditor import Auditor
from services.verifier.breaker import Breaker
from services.verifier.budget import allowance, is_past
from services.verifier.findings import Finding, broken_checks
from services.verifier.holds import Holds
from services.verifier.rewards import Signature, fault_of_rollout, faulted, judged, needs_no_reward
from shared.bus.delivery import Delivery
from shared.bus.service_frame import ServiceFrame
from shared.bus.subscriptions import trajectory_subscriptions
from shared.contracts import Headers, Reward, Trajectory
from shared.promptness import be_prompt
from shared.sandbox.sandbox import Sandbox
from shared.settings import Settings
from shared.verification.checks import Allowance, Checks, Methods
from shared.verification.children import Checked, ChildPool
from shared.verification.faults import CheckTooLate, fault_verdict
from shared.verification.jails import Jails, machine_budget
from shared.verification.judgement import Attempt
from shared.verification.registered import registered, sandbox_here

SERVICE: Final = "verifier"


class VerifierService:
    """One verifier process of one run. `methods` finds check methods by name."""

    policy_version = -1

    def __init__(self, settings: Settings, worker_id: str, methods: Methods = registered) -> None:
        self._settings = settings
        self._worker_id = worker_id
        self._version = _version()
        self._log = structlog.get_logger()
        workloads = settings.verifier.workloads
        self._frame: ServiceFrame[Trajectory] = ServiceFrame(
            settings,
            SERVICE,
            worker_id,
            kind=Trajectory,
            group_of=lambda trajectory: trajectory.slot.group_id,
            subscriptions=trajectory_subscriptions(settings, workloads),
            workloads=workloads,
            concurrency=settings.verifier.concurrency,
            opens="its checking children",
            idles="trajectories",
        )
        verifier, names = settings.verifier, [domain.name for domain in settings.domains]
        self._pool = ChildPool(names, children=verifier.children)
        self._pool_apart = ChildPool(names)
        self._jails = Jails(
            self._open_sandbox,
            machine_budget(verifier.sandbox_cpus, verifier.sandbox_memory_mb),
        )
        self._checks = Checks(self._pool, self._jails, methods)
        self._auditor = Auditor(
            settings.auditor, self._checks, Checks(self._pool_apart, self._jails, methods)
        )
        self._breaker = Breaker(verifier.breaker_share, verifier.breaker_least, verifier.breaker_window)
        self._holds = Holds(
            self._frame.producer,
            self._frame.watcher,
            self._frame.names.control,
            run_id=settings.run.name,
            worker_id=worker_id,
            never=settings.auditor.never_hold,
        )
        self._verdicts: Counter[str] = Counter()

    async def run(self, stop: asyncio.Event) -> None:
        """Verify until `stop` is set or the run has ended. Raises `ConfigError` for domains it cannot load."""
        await self._frame.run(self, stop)

    async def open(self) -> None:
        await self._pool.start()
        be_prompt()

    async def close(self) -> None:
        await self._pool.close()
        await self._pool_apart.close()
        await self._jails.aclose()

    async def _open_sandbox(self) -> Sandbox:
        box = await sandbox_here(self._settings.sandbox)
        self._log.info("sandbox.ready", cgroups=box.mode)
        return box

    def beside(self) -> Sequence[Coroutine[Any, Any, None]]:
        return ()

    async def handle(self, delivery: Delivery[Trajectory]) -> None:
        """One trajectory to its reward. What it raises is a fault of ours, and is tried again later."""
        trajectory = delivery.message
        if needs_no_reward(trajectory):
            return
        for domain in self._holds.lifted():
            self._breaker.lift(domain)
            self._auditor.lift(domain)
        with self._span(delivery) as span:
            fault = fault_of_rollout(trajectory)
            if fault:
                await self._send(
                    faulted(trajectory, "infrastructure", fault, self._signature(delivery)), span
                )
                await self._count_fault_of_rollout(trajectory)
                return
            attempt = Attempt(trajectory.final_answer, trajectory.artifacts)
            checked = await self._check(delivery, attempt)
            looked = await self._auditor.look_again(
                trajectory, attempt, checked, partial(self._allowance, delivery)
            )
            seen = self._auditor.observe(trajectory, looked.checked.judgement)
            reward = judged(trajectory, looked.checked, self._signature(delivery), seen.stream_flags)
            await self._send(reward, span)
            for finding in (looked.finding, seen.finding):
                await self._tell(finding)

    async def give_up(self, delivery: Delivery[Trajectory], error: Exception) -> None:
        """After the last retry: a terminal fault, so that the group can complete without this attempt.

        Past the deadline the scheduler has sent the group again: a fault told now would fill the slots of that
        attempt, so the dead letter is all that is left of this one.
        """
        if is_past(_deadline_ms(delivery), _now_ms()):
            self._log.warning(
                "verifier.too_late", trajectory_id=delivery.message.trajectory_id, error=str(error)
            )
            return
        with self._span(delivery) as span:
            reason = f"not judged after {delivery.attempt} attempts: {error}"
            fault = faulted(delivery.message, fault_verdict(error), reason, self._signature(delivery))
            await self._send(fault, span)

    async def _check(self, delivery: Delivery[Trajectory], attempt: Attempt) -> Checked:
        domain = delivery.message.domain
        try:
            checked = await self._checks.check(domain, attempt, self._allowance(delivery))
        except CheckTooLate:
            raise  # load, and no word on the domain
        except Exception as error:
            tripped = self._breaker.observe(domain.name, str(error) or type(error).__name__)
            await self._tell(None if tripped is None else broken_checks(tripped))
            raise
        self._breaker.observe(domain.name)
        return checked

    async def _count_fault_of_rollout(self, trajectory: Trajectory) -> None:
        """Tools and sandboxes that break while a domain is attempted are as much its trouble as a check that breaks."""
        if trajectory.stop_reason != "infrastructure":
            return
        tripped = self._breaker.observe(trajectory.domain.name, f"no attempt: {trajectory.fault}")
        await self._tell(None if tripped is None else broken_checks(tripped))

    async def _tell(self, finding: Finding | None) -> None:
        if finding is not None:
            await self._holds.tell(finding)

    def _allowance(self, delivery: Delivery[Trajectory]) -> Allowance:
        return allowance(self._settings.verifier, _deadline_ms(delivery), _now_ms())

    async def _send(self, reward: Reward, span: Span) -> None:
        span.set_attribute("temper.verdict", reward.verdict)
        if reward.reward is not None:
            span.set_attribute("temper.reward", reward.reward)
        flags = (*reward.flags, *reward.stream_flags)
        if flags:
            span.set_attribute("temper.flags", flags)
        headers = Headers(policy_version=reward.policy_version)
        await self._frame.producer.send(self._frame.names.rewards, reward, headers)
        self._verdicts[reward.verdict] += 1

    def _span(self, delivery: Delivery[Trajectory]) -> contextlib.AbstractContextManager[Span]:
        trajectory = delivery.message
        group = trajectory.slot.group_id
        return self._frame.tracing.span(
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

    def _signature(self, delivery: Delivery[Trajectory]) -> Signature:
        return Signature(self._worker_id, self._version, _now_ms(), delivery.attempt)

    def waits_for(self) -> str:
        return f"a sandbox: {self._jails.problem}" if self._jails.problem else ""

    def ready(self) -> Mapping[str, Any]:
        return {"domains": [domain.name for domain in self._settings.domains]}

    def gauges(self) -> Mapping[str, float]:
        return {
            "children": len(self._pool.pids),
            "sandbox_checks": self._jails.running,
            "sandbox_waiting": self._jails.waiting,
            "holds": self._holds.count,
            **{f"verdict.{verdict}": count for verdict, count in self._verdicts.items()},
            **self._auditor.gauges(),
        }


def _deadline_ms(delivery: Delivery[Trajectory]) -> int:
    """The task's, as it was handed down: milliseconds since the epoch, 0 for none."""
    return delivery.headers.deadline_ms or delivery.message.deadline_ms


def _now_ms() -> int:
    return int(time.time() * 1000)


def _version() -> str:
    """Of the installed distribution; `source` where there is none."""
    try:
        return importlib.metadata.version("temper-rl")
    except importlib.metadata.PackageNotFoundError:
        return "source"


async def run(settings: Settings, worker_id: str, stop: asyncio.Event) -> None:
    """Runs a verifier of `settings.run` until the run has ended (returns) or `stop` is set."""
    await VerifierService(settings, worker_id).run(stop)
