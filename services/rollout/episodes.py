"""Attempts as `Trajectory` messages.

Invariant (7 of the design): ids, mask, log-probabilities and spans are put together from what was sampled and from
nothing else; the stop token is a sampled token. The clock and the ids are given, so that this is a pure function.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from services.rollout.chat import Demonstration, Prompt
from services.rollout.engines.base import Generation
from services.rollout.turns import budgets
from services.rollout.turns.episode import End
from shared.contracts import (
    NOT_SAMPLED,
    RoleSpan,
    SamplingMode,
    Sequence,
    Slot,
    StopReason,
    Task,
    Timings,
    Trajectory,
    VersionSpan,
)


@dataclass(frozen=True, slots=True)
class Signature:
    """Who made an attempt, when, and what it is called."""

    trajectory_id: str
    worker_id: str
    created_ms: int
    timings: Timings = field(default_factory=Timings)


def sampled(
    task: Task, slot: Slot, prompt: Prompt, made: Generation, *, text: str, by: Signature
) -> Trajectory:
    """`text` is the decoded answer."""
    size, count = len(prompt.ids), len(made.token_ids)
    sequence = Sequence(
        token_ids=np.concatenate([prompt.ids, made.token_ids]),
        loss_mask=np.repeat(np.array([0, 1], dtype=np.uint8), [size, count]),
        logprobs=np.concatenate([np.zeros(size, dtype=np.float32), made.logprobs]),
        version_spans=(
            VersionSpan(length=size, version=NOT_SAMPLED),
            *(VersionSpan(length=length, version=version) for length, version in made.versions),
        ),
        role_spans=with_answer(prompt.roles, count),
    )
    return _trajectory(
        task,
        slot,
        by,
        sequences=(sequence,),
        stop_reason="cancelled" if made.stop_reason == "cut" else made.stop_reason,
        final_answer=text,
        first_version=made.versions[0][1] if count else NOT_SAMPLED,
        last_version=made.versions[-1][1] if count else NOT_SAMPLED,
    )


def demonstrated(task: Task, slot: Slot, shown: Demonstration, by: Signature, answer: str = "") -> Trajectory:
    """What to imitate, with mask 1 where the policy would have sampled it. `answer`: the text of `shown` where it is
    not the task's demonstration."""
    size, count = len(shown.prompt.ids), len(shown.answer_ids)
    sequence = Sequence(
        token_ids=np.concatenate([shown.prompt.ids, shown.answer_ids]),
        loss_mask=np.repeat(np.array([0, 1], dtype=np.uint8), [size, count]),
        logprobs=np.zeros(size + count, dtype=np.float32),
        version_spans=(VersionSpan(length=size + count, version=NOT_SAMPLED),),
        role_spans=with_answer(shown.prompt.roles, count),
    )
    return _trajectory(
        task,
        slot,
        by,
        sequences=(sequence,),
        stop_reason="demonstration",
        mode="demonstration",
        final_answer=answer or task.demonstration[-1].content,
    )


def of_turns(task: Task, slot: Slot, end: End, by: Signature) -> Trajectory:
    """An attempt of many turns, or the demonstration of one."""
    return _trajectory(
        task,
        slot,
        by,
        sequences=end.sequences,
        stop_reason="demonstration" if task.demonstration else end.stop_reason,
        final_answer=end.final_answer,
        tool_calls=end.tool_calls,
        malformed_calls=end.malformed_calls,
        turns=end.turns,
        artifacts=dict(end.artifacts),
        fault=end.fault,
        first_version=end.first_version,
        last_version=end.last_version,
    )


def no_room(task: Task, slot: Slot, prompt: Prompt, limit: int, by: Signature) -> Trajectory:
    """The prompt alone fills the context: nothing was sampled, and the trajectory says why."""
    size = len(prompt.ids)
    sequence = Sequence(
        token_ids=prompt.ids,
        loss_mask=np.zeros(size, dtype=np.uint8),
        logprobs=np.zeros(size, dtype=np.float32),
        version_spans=(VersionSpan(length=size, version=NOT_SAMPLED),),
        role_spans=prompt.roles,
    )
    return _trajectory(
        task, slot, by, sequences=(sequence,), stop_reason="length", fault=budgets.no_room(size, limit)
    )


def faulted(task: Task, slot: Slot, fault: str, by: Signature) -> Trajectory:
    """No attempt was made, for a reason of ours: the group can complete without this slot."""
    return _trajectory(task, slot, by, sequences=(), stop_reason="infrastructure", fault=fault or "unknown")


def with_answer(roles: Items[RoleSpan], count: int) -> tuple[RoleSpan, ...]:
    """The prompt's spans and `count` more tokens of the assistant, as one span where they touch."""
    if not count:
        return tuple(roles)
    if roles and roles[-1].role == "assistant":
        return (*roles[:-1], RoleSpan(length=roles[-1].length + count, role="assistant"))
    return (*roles, RoleSpan(length=count, role="assistant"))


def mode_of(task: Task) -> SamplingMode:
    if task.demonstration:
        return "demonstration"
    return "greedy" if task.sampling.temperature == 0 else "sampled"


def _trajectory(
    task: Task,
    slot: Slot,
    by: Signature,
    *,
    sequences: tuple[Sequence, ...],
    stop_reason: StopReason,
    mode: SamplingMode | None = None,
    **more: Any,
) -> Trajectory:
    return Trajectory(
        trajectory_id=by.trajectory_id,
        slot=slot,
        attempt=task.attempt,
        stage=task.stage,
        stage_index=task.stage_index,
        purpose=task.purpose,
        workload=task.workload,
        priority=task.priority,
        domain=task.domain,
        sampling=task.sampling,
        sampling_mode=mode or mode_of(task),
        sequences=sequences,
        stop_reason=stop_reason,
        timings=by.timings,
        worker_id=by.worker_id,
        created_ms=by.created_ms,
        deadline_ms=task.deadline_ms,
        **more,
    )
