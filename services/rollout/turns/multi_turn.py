"""Tasks with tools, or of more than one turn.

Invariant: as `single_turn`: every slot ends as exactly one trajectory, or the call raises and the task comes again, or
the task's deadline passes and nothing is said.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

import structlog

from services.rollout import episodes
from services.rollout.continuing import Course, OtherContextError
from services.rollout.engines.cut import Cut
from services.rollout.enough import Enough
from services.rollout.handing_back import HandingBack
from services.rollout.seeds import sample_seed
from services.rollout.turns.episode import End
from shared.contracts import Slot, Task, Timings, Trajectory
from shared.telemetry.tracing import Tracing

_log = structlog.get_logger(__name__)
Send = Callable[[Trajectory], Awaitable[None]]
WaitForPolicy = Callable[[int], Awaitable[int]]


class Attempts(Protocol):
    """Who makes one attempt: `Runner`, or `AgentRunner`."""

    async def attempt(self, task: Task, slot: Slot, seed: int, cut: Cut | None, course: Course) -> End:
        """`cut` ends it as `cancelled`; `course` has what was sampled of it before, and takes what is now."""


@dataclass(frozen=True, slots=True)
class MultiTurn:
    """`runner_of(task)`: under the terms of the task's domain. `wait_for_policy(version)` returns once the engine serves
    that version or a newer one."""

    runner_of: Callable[[Task], Attempts]
    tracing: Tracing
    run_seed: int
    worker_id: str
    wait_for_policy: WaitForPolicy
    handing_back: HandingBack | None = None

    async def attempt(self, task: Task, send: Send) -> None:
        """Raises what `Runner.attempt` raises, and `BusError`."""
        clock = asyncio.timeout(_remaining_s(task))
        try:
            async with clock:
                began = time.monotonic()
                if not task.demonstration:
                    await self.wait_for_policy(task.min_policy_version)
                waited = time.monotonic() - began
                await self._all(task, waited, send)
        except TimeoutError:
            if not clock.expired():
                raise
            _log.warning("task.expired", group=task.group_id, attempt=task.attempt, before="it was done")

    async def _all(self, task: Task, waited: float, send: Send) -> None:
        """Every slot to its end before a failure is told: what is complete is sent."""
        with self.handing_back.cut() if self.handing_back else contextlib.nullcontext(Cut()) as cut:
            enough = Enough(task, send, cut)
            works = [
                asyncio.ensure_future(self._one(task, slot, waited, cut=cut, enough=enough))
                for slot in task.slots()
            ]
            try:
                ends = await asyncio.gather(*works, return_exceptions=True)
            finally:
                for work in works:
                    work.cancel()
                await asyncio.gather(*works, return_exceptions=True)
        for end in ends:
            if isinstance(end, BaseException):
                raise end

    async def _one(self, task: Task, slot: Slot, waited: float, *, cut: Cut, enough: Enough) -> None:
        began = time.monotonic()
        with self.tracing.span("episode") as span:
            span.set_attribute("temper.sample", slot.sample_index)
            course = Course(task.continuation)
            try:
                end = await self._end(task, slot, cut, course)
            except OtherContextError as error:
                _log.warning(
                    "attempt.starts_again", group=task.group_id, sample=slot.sample_index, reason=str(error)
                )
                course = course.again()
                end = await self._end(task, slot, cut, course)
            if end.stop_reason == "cancelled" and cut.reason == "hand_back" and self.handing_back:
                span.set_attribute("temper.stop_reason", "handed_back")
                await self.handing_back.send(task, slot, course)
                return
            timings = _timings(task, end, waited, waited + time.monotonic() - began)
            trajectory = episodes.of_turns(task, slot, end, self._sign(timings))
            span.set_attribute("temper.trajectory_id", trajectory.trajectory_id)
            span.set_attribute("temper.policy_version", trajectory.last_version)
            span.set_attribute("temper.stop_reason", trajectory.stop_reason)
            span.set_attribute("temper.tokens", trajectory.sampled_tokens())
            span.set_attribute("temper.turns", trajectory.turns)
            span.set_attribute("temper.tool_calls", len(trajectory.tool_calls))
            span.set_attribute("temper.malformed_calls", trajectory.malformed_calls)
            await enough.send(trajectory)

    async def _end(self, task: Task, slot: Slot, cut: Cut, course: Course) -> End:
        run_seed = self.run_seed if task.sampling.seed is None else task.sampling.seed
        seed = sample_seed(run_seed, slot.group_id, slot.sample_index, task.attempt, course.hops)
        return await self.runner_of(task).attempt(task, slot, seed, cut, course)

    def _sign(self, timings: Timings) -> episodes.Signature:
        return episodes.Signature(
            trajectory_id=uuid.uuid4().hex,
            worker_id=self.worker_id,
            created_ms=int(time.time() * 1000),
            timings=timings,
        )


def _remaining_s(task: Task) -> float | None:
    """Until nobody wants the result; None where the task has no deadline."""
    return task.deadline_ms / 1000 - time.time() if task.deadline_ms else None


def _timings(task: Task, end: End, waited: float, total: float) -> Timings:
    queued = max(0.0, time.time() - total - task.created_ms / 1000) if task.created_ms else 0.0
    return Timings(
        queued=queued + end.queued_s,
        policy_wait=waited,
        prefill=end.prefill_s,
        decode=end.decode_s,
        tools=end.tools_s,
        total=total,
    )
