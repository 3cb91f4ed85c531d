"""What an audit looks at: a run reduced to facts, without I/O.

Invariant: facts are what was found, not what should be: nothing here is corrected, defaulted or left out because it
is odd. Order is the order of the log (per partition; steps, notices and policies have one partition).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from shared.contracts import Evaluation, Notice, Step, Verdict
from shared.telemetry.span_log import SpanRecord

SlotKey = tuple[str, int]
"""(group id, sample index) within the audited run."""


@dataclass(frozen=True, slots=True)
class TaskFact:
    group_id: str
    samples: tuple[int, ...]
    purpose: str = "train"
    attempt: int = 1
    traceparent: str = ""
    position: str = ""
    """`topic/partition/offset` of its record."""
    finished: bool = False
    """Rollout committed it: no retry of it waits and it is no dead letter."""
    expired: bool = False
    """Its deadline has passed: the scheduler sends the group again or gives it up, and rollout owes nothing."""


@dataclass(frozen=True, slots=True)
class AttemptFact:
    """A trajectory."""

    trajectory_id: str
    slot: SlotKey
    purpose: str = "train"
    demonstration: bool = False
    infrastructure: bool = False
    """stop_reason `infrastructure`: there was no attempt."""
    oldest_version: int = -1
    """Of the tokens that a policy sampled; -1 where none was."""
    sampled_tokens: int = 0
    position: str = ""
    finished: bool = False
    """The verifier committed it: no retry of it waits and it is no dead letter."""


@dataclass(frozen=True, slots=True)
class RewardFact:
    trajectory_id: str
    slot: SlotKey
    verdict: Verdict
    reward: float | None = None


@dataclass(frozen=True, slots=True)
class PolicyFact:
    """An announcement."""

    version: int
    step: int
    digest: str
    checkpoint: str
    """Key of the checkpoint's folder in the object store."""


@dataclass(frozen=True, slots=True)
class CheckpointFact:
    """A folder of checkpoints/<run>/."""

    key: str
    step: int
    problem: str = ""
    """Why it is not complete; empty where it is."""
    weights_digest: str = ""
    """Of its manifest."""
    pruned: tuple[str, ...] = ()
    """Files of its manifest that are no longer there. Weights and optimizer of old checkpoints may be."""
    damaged: tuple[str, ...] = ()
    """What is wrong with files that are there."""


@dataclass(frozen=True, slots=True)
class DeadFact:
    service: str
    origin: str
    group_id: str = ""
    error_type: str = ""
    error_message: str = ""


class GroupSet(Protocol):
    """Group ids that can only be asked for."""

    def __contains__(self, group_id: str, /) -> bool: ...


@dataclass(frozen=True, slots=True)
class RunFacts:
    run_id: str
    max_lag: int
    ended: bool = False
    tasks: tuple[TaskFact, ...] = ()
    attempts: tuple[AttemptFact, ...] = ()
    rewards: tuple[RewardFact, ...] = ()
    steps: tuple[Step, ...] = ()
    """Every step record, also those of lineages that a restart gave up."""
    notices: tuple[Notice, ...] = ()
    policies: tuple[PolicyFact, ...] = ()
    checkpoints: tuple[CheckpointFact, ...] = ()
    remembered: GroupSet | None = None
    """Groups that the newest complete checkpoint knows as resolved; None where there is no checkpoint."""
    dead: tuple[DeadFact, ...] = ()
    abandoned: frozenset[str] = frozenset()
    """Groups that the scheduler gave up: nobody owes anything for them any more."""
    unreadable: tuple[str, ...] = ()
    """`topic/partition/offset: why` of records that this build cannot read: each must be a dead letter."""
    evaluations: tuple[Evaluation, ...] = ()
    spans: tuple[SpanRecord, ...] | None = None
    """None: the run wrote no trace files, and traces are not checked."""
    unread: Mapping[str, int] = field(default_factory=dict)
    """Topic → records that the broker no longer has: nothing can be proved about them."""
