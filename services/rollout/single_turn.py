"""One question, one answer: tasks of the `single_turn` workload.

Invariant: every slot of a task ends as exactly one trajectory that is sent as soon as it is complete, or the call
raises and the task comes again, or the task's deadline passes. An expired task leaves no word: the scheduler sends
its group again as a new attempt, or gives the group up, and a fault told here would fill the slot of that attempt.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

import structlog

from services.rollout import episodes
from services.rollout.chat import ChatCodec, Prompt
from services.rollout.continuing import Course, OtherContextError, joined, rest_of
from services.rollout.engines.base import NOTHING, Engine, GenerateRequest, Generation
from services.rollout.engines.cut import GRACE_S, Cut, unless_cut
from services.rollout.enough import Enough
from services.rollout.handing_back import HandingBack
from services.rollout.seeds import sample_seed
from shared.contracts import Slot, Task, Timings, Trajectory
from shared.errors import ContractError
from shared.telemetry.tracing import Tracing

_log = structlog.get_logger(__name__)
Send = Callable[[Trajectory], Awaitable[None]]
WaitForPolicy = Callable[[int], Awaitable[int]]


class _ExpiredError(Exception):
    """The task's deadline passed; the message says before what."""


@dataclass(frozen=True, slots=True)
class SingleTurn:
    """`wait_for_policy(version)` returns once the engine serves that version or a newer one."""

    engine: Engine
    codec: ChatCodec
    tracing: Tracing
    run_seed: int
    worker_id: str
    wait_for_policy: WaitForPolicy
    handing_back: HandingBack | None = None

    async def attempt(self, task: Task, send: Send) -> None:
        """Raises `ContractError` (a task of another kind), `TemplateFault`, `GenerationFault`, `BusError`."""
        if task.tools or task.limits.turns != 1:
            raise ContractError(
                f"task {task.group_id}: {task.limits.turns} turns and tools {list(task.tools)} are not single_turn work"
            )
        try:
            if _remaining_s(task) <= 0:
                raise _ExpiredError("it started")
            if task.demonstration:
                await self._demonstrate(task, send)
            else:
                await self._sample_all(task, send)
        except _ExpiredError as expired:
            _log.warning("task.expired", group=task.group_id, attempt=task.attempt, before=str(expired))

    async def _demonstrate(self, task: Task, send: Send) -> None:
        shown = self.codec.demonstrate(task.messages, task.demonstration)
        worse = self.codec.demonstrate(task.messages, task.rejected) if task.rejected else shown
        for slot in task.slots():
            with self.tracing.span("sample") as span:
                better = slot.sample_index == 0
                said = task.demonstration if better or not task.rejected else task.rejected
                trajectory = episodes.demonstrated(
                    task, slot, shown if better else worse, self._sign(), said[-1].content
                )
                span.set_attribute("temper.trajectory_id", trajectory.trajectory_id)
                await send(trajectory)

    async def _sample_all(self, task: Task, send: Send) -> None:
        prompt = self.codec.prompt(task.messages)
        began = time.monotonic()
        try:
            async with asyncio.timeout(_remaining_s(task)):
                await self.wait_for_policy(task.min_policy_version)
        except TimeoutError as error:
            raise _ExpiredError(f"policy {task.min_policy_version} came") from error
        waited = time.monotonic() - began
        with self.handing_back.cut() if self.handing_back else contextlib.nullcontext(Cut()) as cut:
            enough = Enough(task, send, cut)
            ends = await asyncio.gather(
                *(self._sample(task, slot, prompt, waited, cut=cut, enough=enough) for slot in task.slots()),
                return_exceptions=True,
            )
        failures = [end for end in ends if isinstance(end, BaseException)]
        # A failure that is none of the clock's is worth the retry, whatever else expired beside it.
        for failure in sorted(failures, key=lambda failure: isinstance(failure, _ExpiredError)):
            raise failure

    async def _sample(
        self, task: Task, slot: Slot, prompt: Prompt, waited: float, *, cut: Cut, enough: Enough
    ) -> None:
        limit = min(task.limits.context_tokens, self.engine.longest)
        room = limit - len(prompt.ids)
        with self.tracing.span("sample") as span:
            span.set_attribute("temper.sample", slot.sample_index)
            if room < 1:
                trajectory = episodes.no_room(task, slot, prompt, limit, self._sign())
            else:
                course = Course(task.continuation)
                began = time.monotonic()
                made = await self._generate(task, slot, prompt, course, room=room, cut=cut)
                if made.stop_reason == "cut" and cut.reason == "hand_back" and self.handing_back:
                    span.set_attribute("temper.stop_reason", "handed_back")
                    await self.handing_back.send(task, slot, course)
                    return
                timings = _timings(task, made, waited, waited + time.monotonic() - began)
                trajectory = episodes.sampled(
                    task, slot, prompt, made, text=self.codec.text(made.token_ids), by=self._sign(timings)
                )
            span.set_attribute("temper.trajectory_id", trajectory.trajectory_id)
            span.set_attribute("temper.policy_version", trajectory.last_version)
            span.set_attribute("temper.stop_reason", trajectory.stop_reason)
            span.set_attribute("temper.tokens", trajectory.sampled_tokens())
            await enough.send(trajectory)

    async def _generate(
        self, task: Task, slot: Slot, prompt: Prompt, course: Course, *, room: int, cut: Cut
    ) -> Generation:
        sampling = task.sampling
        run_seed = self.run_seed if sampling.seed is None else sampling.seed
        try:
            begun = course.begun(0, prompt.ids)
        except OtherContextError as error:
            _log.warning(
                "attempt.starts_again", group=task.group_id, sample=slot.sample_index, reason=str(error)
            )
            begun, course.before = None, course.again().before
        context, left = prompt.ids, min(sampling.max_tokens, room)
        if begun is not None:
            context, left = rest_of(context, begun, left)
            if left < 1:
                return replace(begun, stop_reason="length")
        request = GenerateRequest(
            request_id=f"{slot.group_id}/{slot.sample_index}",
            prompt_ids=context,
            max_tokens=left,
            stop_ids=self.codec.stop_ids,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            seed=sample_seed(run_seed, slot.group_id, slot.sample_index, task.attempt, course.hops),
            exact=task.purpose == "train",
            cut=cut,
        )
        try:
            async with asyncio.timeout(min(task.limits.wall_seconds, _remaining_s(task))):
                made = await unless_cut(cut, self.engine.generate(request), GRACE_S) or NOTHING
        except TimeoutError as error:
            raise _ExpiredError(f"sample {slot.sample_index} was done") from error
        made = made if begun is None else joined(begun, made)
        course.made(made, prompt.ids)
        return made

    async def give_up(self, task: Task, reason: str, send: Send) -> None:
        """One trajectory a slot that says why there is no attempt."""
        for slot in task.slots():
            with self.tracing.span("sample") as span:
                trajectory = episodes.faulted(task, slot, reason, self._sign())
                span.set_attribute("temper.trajectory_id", trajectory.trajectory_id)
                await send(trajectory)

    def _sign(self, timings: Timings | None = None) -> episodes.Signature:
        return episodes.Signature(
            trajectory_id=uuid.uuid4().hex,
            worker_id=self.worker_id,
            created_ms=int(time.time() * 1000),
            timings=timings or Timings(),
        )


def _remaining_s(task: Task) -> float:
    """Until nobody wants the result; for ever where the task has no deadline."""
    return task.deadline_ms / 1000 - time.time() if task.deadline_ms else float("inf")


def _timings(task: Task, made: Generation, waited: float, total: float) -> Timings:
    queued = max(0.0, time.time() - total - task.created_ms / 1000) if task.created_ms else 0.0
    return Timings(
        queued=queued + made.timings.queued,
        policy_wait=waited,
        prefill=made.timings.prefill,
        decode=made.timings.decode,
        total=total,
    )
