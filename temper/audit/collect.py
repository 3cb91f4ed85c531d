"""From topics, object store and trace files to the facts of one run.

Invariant: every record of the run is looked at; a record that nobody can read is a fact too (it must be a dead
letter). Bodies are dropped as soon as their facts are taken: a trajectory costs its ids, not its tokens.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from shared.bus.dead_book import REPLAYED
from shared.bus.delivery import RawRecord
from shared.bus.records import header
from shared.bus.subscriptions import retry_topics
from shared.bus.topics import SERVICES, WORKING_SERVICES, TopicNames
from shared.contracts import Control, Evaluation, Notice, Policy, Reward, Step, Task, Trajectory
from shared.contracts.base import Message
from shared.errors import ContractError, StorageError
from shared.settings import Settings
from shared.storage import ObjectStore
from shared.telemetry.span_log import SpanRecord, read_spans
from temper.audit.checkpoints import policy_facts, read_checkpoints, read_memory
from temper.audit.facts import AttemptFact, DeadFact, RewardFact, RunFacts, TaskFact
from temper.audit.log import TopicLog
from temper.audit.progress import Progress, read_progress


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
    abandoned: set[str] = field(default_factory=set)
    waiting: set[str] = field(default_factory=set)
    """Origins of records that wait in a retry topic."""
    unreadable: list[str] = field(default_factory=list)
    unread: Counter[str] = field(default_factory=Counter)
    ended: bool = False

    def take(self, message: Message, record: RawRecord, progress: Progress) -> None:
        where = record.position
        match message:
            case Task():
                finished = progress.finished("rollout", where)
                traceparent = header(record.headers, "traceparent")
                self.tasks.append(
                    replace(_task(message, traceparent), position=str(where), finished=finished)
                )
            case Trajectory():
                finished = progress.finished("verifier", where)
                self.attempts.append(replace(_attempt(message), position=str(where), finished=finished))
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
                self.abandoned.update(message.groups)

    def unfinish(self) -> None:
        """A record that was committed because it went to a retry topic or the dead letters is not done."""
        elsewhere = self.waiting | {letter.origin for letter in self.dead}
        self.tasks = [replace(t, finished=t.finished and t.position not in elsewhere) for t in self.tasks]
        self.attempts = [
            replace(a, finished=a.finished and a.position not in elsewhere) for a in self.attempts
        ]


def collect(settings: Settings, *, digests: bool = True) -> RunFacts:
    """Blocking. `settings.bus` must reach a broker that serves the run's topics.

    Raises `BusError` where the topics cannot be read and `StorageError` where the object store cannot.
    """
    store = ObjectStore(settings.storage_uri)
    gathered = _read_topics(settings, store)
    run = settings.run.name
    checkpoints = read_checkpoints(store, run, digests=digests)
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
        policies=policy_facts(gathered.policies, run),
        checkpoints=checkpoints,
        remembered=read_memory(store, checkpoints),
        dead=tuple(gathered.dead),
        abandoned=frozenset(gathered.abandoned),
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
        *_retry_topics(settings),
    )


def _retry_topics(settings: Settings) -> dict[str, str]:
    """Topic → the service that reads it."""
    return {topic: service for service in WORKING_SERVICES for topic in retry_topics(settings, service)}


def _read_topics(settings: Settings, store: ObjectStore) -> _Gathered:
    names, run = TopicNames(settings.bus.namespace), settings.run.name
    failures = {names.dead(service): service for service in SERVICES}
    retries = _retry_topics(settings)
    progress = read_progress(settings)
    gathered = _Gathered()
    with TopicLog(settings, audited_topics(settings), store) as log:
        gathered.unread = _gone(log.first, {names.policies, names.control, *retries})
        for record in log.records():
            if header(record.headers, "run_id") not in (run, ""):
                continue
            if record.topic in failures:
                if header(record.headers, "error.type") == REPLAYED:
                    continue  # a note that a letter was sent again, no letter
                gathered.dead.append(_dead(failures[record.topic], record))
            elif record.topic in retries:
                if not progress.finished(retries[record.topic], record.position):
                    gathered.waiting.add(header(record.headers, "origin"))
            else:
                _take(gathered, log, record, run, progress)
    gathered.unfinish()
    return gathered


def _take(gathered: _Gathered, log: TopicLog, record: RawRecord, run: str, progress: Progress) -> None:
    try:
        message = log.message(record)
    except (ContractError, StorageError) as error:
        gathered.unreadable.append(f"{record.position}: {error}")
        return
    if getattr(message, "run_id", run) == run:
        gathered.take(message, record, progress)


def _gone(first: Mapping[tuple[str, int], int], expected: set[str]) -> Counter[str]:
    """Records before the first that is left, by topic; topics in `expected` lose old ones by design."""
    gone: Counter[str] = Counter()
    for (topic, _), offset in first.items():
        if topic not in expected:
            gone[topic] += offset
    return gone


def _spans(settings: Settings) -> tuple[SpanRecord, ...] | None:
    if settings.telemetry.traces == "none":
        return None
    return read_spans(settings.run_folder / "traces").spans


def _task(task: Task, traceparent: str) -> TaskFact:
    samples = tuple(slot.sample_index for slot in task.slots())
    expired = 0 < task.deadline_ms <= time.time() * 1000
    return TaskFact(task.group_id, samples, task.purpose, task.attempt, traceparent, expired=expired)


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
