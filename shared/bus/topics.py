"""The topic manifest: every topic of a deployment, in one place.

Invariant: the names that services compute and the topics that `temper topics apply` creates come from the same
functions, so no service can write to a topic that the manifest does not declare.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from shared.settings import BusSettings, Settings

SERVICES = ("scheduler", "rollout", "verifier", "learner")
WORKING_SERVICES = ("rollout", "verifier")
"""Services that handle records one by one, and so retry them. The others read logs."""

_DAY_MS = 24 * 3_600_000
_KAFKA_DEFAULT_MAX_BYTES = 1_048_588
_RECORD_OVERHEAD_BYTES = 64 * 1024
"""Room for headers and batch framing over `bus.max_record_bytes`."""


@dataclass(frozen=True, slots=True)
class TopicNames:
    """Names under one namespace."""

    namespace: str

    def tasks(self, workload: str, priority: str) -> str:
        return f"{self.namespace}.tasks.{workload}.{priority}"

    def trajectories(self, workload: str, priority: str) -> str:
        return f"{self.namespace}.trajectories.{workload}.{priority}"

    @property
    def rewards(self) -> str:
        return f"{self.namespace}.rewards"

    @property
    def policies(self) -> str:
        return f"{self.namespace}.policies"

    @property
    def steps(self) -> str:
        return f"{self.namespace}.steps"

    @property
    def workers(self) -> str:
        return f"{self.namespace}.workers"

    @property
    def control(self) -> str:
        return f"{self.namespace}.control"

    def retries(self, service: str, delay_s: float) -> str:
        return f"{self.namespace}.retries.{service}.{delay_name(delay_s)}"

    def dead(self, service: str) -> str:
        return f"{self.namespace}.dead.{service}"


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """One topic as it must be. `config` holds only what differs from the broker's defaults on purpose."""

    name: str
    partitions: int
    replication_factor: int
    key: str
    written_by: tuple[str, ...]
    read_by: tuple[str, ...]
    config: dict[str, str] = field(default_factory=dict)


def names(settings: Settings) -> TopicNames:
    return TopicNames(settings.bus.namespace)


def delay_name(delay_s: float) -> str:
    """`10s`, or `250ms` where it is no whole number of seconds."""
    milliseconds = round(delay_s * 1000)
    return f"{milliseconds // 1000}s" if milliseconds % 1000 == 0 else f"{milliseconds}ms"


def manifest(settings: Settings) -> tuple[TopicSpec, ...]:
    """Every topic that a run with these settings uses, sorted by name."""
    bus = settings.bus
    rows = [*_shared_rows(bus), *_workload_rows(settings), *_failure_rows(bus)]
    specs = {
        row.name: TopicSpec(
            name=row.name,
            partitions=bus.partitions if row.keyed_work else 1,
            replication_factor=bus.replication_factor,
            key=row.key,
            written_by=row.written_by,
            read_by=row.read_by,
            config=_config(row.policy, bus),
        )
        for row in rows
    }
    return tuple(specs[name] for name in sorted(specs))


Policy = Literal["week", "year", "delayed", "compact"]


@dataclass(frozen=True, slots=True)
class _Row:
    name: str
    key: str
    written_by: tuple[str, ...]
    read_by: tuple[str, ...]
    policy: Policy
    keyed_work: bool = False
    """Spread over `bus.partitions`; every other topic has one partition, and so one order."""


def _shared_rows(bus: BusSettings) -> list[_Row]:
    topics = TopicNames(bus.namespace)
    everyone = (*SERVICES, "tools")
    return [
        _Row(topics.rewards, "group_id", ("verifier",), ("learner", "scheduler", "tools"), "week", True),
        _Row(topics.policies, "run_id/policy", ("learner",), ("rollout", "scheduler", "tools"), "compact"),
        _Row(topics.steps, "run_id/step", ("learner",), ("scheduler", "tools"), "year"),
        _Row(topics.workers, "run_id/worker_id", SERVICES, ("scheduler", "tools"), "compact"),
        _Row(topics.control, "run_id/kind", ("scheduler", "verifier", "tools"), everyone, "compact"),
    ]


def _workload_rows(settings: Settings) -> list[_Row]:
    topics = TopicNames(settings.bus.namespace)
    rows = []
    for workload in settings.workloads:
        for priority in workload.priorities:
            tasks = topics.tasks(workload.name, priority)
            attempts = topics.trajectories(workload.name, priority)
            readers = ("verifier", "learner", "scheduler", "tools")
            rows.append(
                _Row(tasks, "group_id", ("scheduler",), ("rollout", "scheduler", "tools"), "week", True)
            )
            rows.append(_Row(attempts, "group_id", ("rollout",), readers, "week", True))
    return rows


def _failure_rows(bus: BusSettings) -> list[_Row]:
    topics = TopicNames(bus.namespace)
    retries = [
        _Row(topics.retries(service, delay_s), "the original's", (service,), (service,), "delayed", True)
        for service in WORKING_SERVICES
        for delay_s in bus.retry_delays_s
    ]
    dead = [
        _Row(topics.dead(service), "the original's", (service,), ("tools",), "year") for service in SERVICES
    ]
    return [*retries, *dead]


def _config(policy: Policy, bus: BusSettings) -> dict[str, str]:
    largest = max(_KAFKA_DEFAULT_MAX_BYTES, bus.max_record_bytes + _RECORD_OVERHEAD_BYTES)
    size = {"max.message.bytes": str(largest)}
    if policy == "compact":
        return {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.1", **size}
    days = 365 if policy == "year" else 7
    kept = {"cleanup.policy": "delete", "retention.ms": str(days * _DAY_MS), **size}
    # A retry's delay counts from the moment the broker appended it, so the broker has to stamp it.
    return {**kept, "message.timestamp.type": "LogAppendTime"} if policy == "delayed" else kept
