"""From topics, object store and trace files to the facts of one run.

Invariant: every record of the run is looked at; a record that nobody can read is a fact too (it must be a dead
letter). Bodies are dropped as soon as their facts are taken: a trajectory costs its ids, not its tokens.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from shared.bus.delivery import RawRecord
from shared.bus.records import header
from shared.bus.topics import SERVICES, TopicNames
from shared.contracts import Control, Evaluation, Notice, Policy, Reward, Step, Task, Trajectory
from shared.contracts.base import Message
from shared.errors import ContractError, StorageError
from shared.settings import Settings
from shared.storage import ObjectStore
from shared.telemetry.span_log import SpanRecord, read_spans
from temper.audit.checkpoints import read_checkpoints, read_policies
from temper.audit.facts import AttemptFact, DeadFact, RewardFact, RunFacts, TaskFact
from temper.audit.log import TopicLog


@dataclass
class _Gathered:
    """Facts while they are read, in log order."""

    tasks: list[TaskFact] = field(default_factory=list)
    attempts: list[AttemptFact] = field(default_factory=list)
    rewards: list[RewardFact] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    notices: list[Notice] = field(default_factory=list)
    evaluations: list[Evaluation] = field(default_factory=list)
    policies: list[Policy] = field(default_factory=list)
    dead: list[DeadFact] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    unread: Counter[str] = field(default_factory=Counter)
    ended: bool = False

    def take(self, message: Message, record: RawRecord) -> None:
        match message:
            case Task():
                self.tasks.append(_task(message, header(record.headers, "traceparent")))
            case Trajectory():
                self.attempts.append(_attempt(message))
            case Reward():
                slot = (message.slot.group_id, message.slot.sample_index)
                self.rewards.append(RewardFact(message.trajectory_id, slot, message.verdict, message.reward))
            case Step():
                self.steps.append(message)
            case Notice():
                self.notices.append(message)
            case Evaluation():
                self.evaluations.append(message)
            case Policy():
                self.policies.append(message)
            case Control():
                self.ended = self.ended or message.kind == "end"


def collect(settings: Settings, *, digests: bool = True) -> RunFacts:
    """Blocking. `settings.bus` must reach a broker that serves the run's topics.

    Raises `BusError` where the topics cannot be read and `StorageError` where the object store cannot.
    """
    store = ObjectStore(settings.storage_uri)
    gathered = _read_topics(settings, store)
    run = settings.run.name
    return RunFacts(
        run_id=run,
        max_lag=settings.scheduler.max_lag,
        ended=gathered.ended,
        tasks=tuple(gathered.tasks),
        attempts=tuple(gathered.attempts),
        rewards=tuple(gathered.rewards),
        steps=tuple(gathered.steps),
        notices=tuple(gathered.notices),
        evaluations=tuple(gathered.evaluations),
        policies=read_policies(store, run, gathered.policies, digests=digests),
        checkpoints=read_checkpoints(store, run),
        dead=tuple(gathered.dead),
        unreadable=tuple(gathered.unreadable),
        spans=_spans(settings),
        unread=dict(gathered.unread),
    )


def audited_topics(settings: Settings) -> tuple[str, ...]:
    names = TopicNames(settings.bus.namespace)
    rows = [(workload.name, priority) for workload in settings.workloads for priority in workload.priorities]
    return (
        *(names.tasks(*row) for row in rows),
        *(names.trajectories(*row) for row in rows),
        names.rewards,
        names.steps,
        names.policies,
        names.control,
        *(names.dead(service) for service in SERVICES),
    )


def _read_topics(settings: Settings, store: ObjectStore) -> _Gathered:
    names, run = TopicNames(settings.bus.namespace), settings.run.name
    dead = {names.dead(service): service for service in SERVICES}
    compacted = {names.policies, names.control}
    gathered = _Gathered()
    with TopicLog(settings, audited_topics(settings), store) as log:
        for (topic, _), first in log.first.items():
            if first and topic not in compacted:
                gathered.unread[topic] += first
        for record in log.records():
            owner = header(record.headers, "run_id")
            if owner not in (run, ""):
                continue
            if record.topic in dead:
                gathered.dead.append(_dead(dead[record.topic], record))
                continue
            try:
                message = log.message(record)
            except (ContractError, StorageError) as error:
                gathered.unreadable.append(f"{record.position}: {error}")
                continue
            if getattr(message, "run_id", run) == run:
                gathered.take(message, record)
    return gathered


def _spans(settings: Settings) -> tuple[SpanRecord, ...] | None:
    if settings.telemetry.traces == "none":
        return None
    return read_spans(settings.run_folder / "traces").spans


def _task(task: Task, traceparent: str) -> TaskFact:
    samples = tuple(slot.sample_index for slot in task.slots())
    return TaskFact(task.group_id, samples, task.purpose, task.attempt, traceparent)


def _attempt(trajectory: Trajectory) -> AttemptFact:
    sampled = [
        span.version
        for sequence in trajectory.sequences
        for span in sequence.version_spans
        if span.version >= 0
    ]
    return AttemptFact(
        trajectory_id=trajectory.trajectory_id,
        slot=(trajectory.slot.group_id, trajectory.slot.sample_index),
        purpose=trajectory.purpose,
        demonstration=trajectory.sampling_mode == "demonstration",
        infrastructure=trajectory.stop_reason == "infrastructure",
        oldest_version=min(sampled, default=-1),
        sampled_tokens=trajectory.sampled_tokens(),
    )


def _dead(service: str, record: RawRecord) -> DeadFact:
    def said(name: str) -> str:
        return header(record.headers, name)

    return DeadFact(service, said("origin"), said("group_id"), said("error.type"), said("error.message"))
