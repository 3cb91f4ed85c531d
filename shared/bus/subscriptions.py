"""What a worker consumes: topics with their weights, and the name of its group.

Invariant: two processes form one group exactly if they serve the same workloads of the same run in the same service;
fleets of different workloads scale apart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from shared.bus.topics import TopicNames
from shared.settings import Settings, WorkloadSettings


class Subscription(NamedTuple):
    """A topic and its share of the handlers, relative to the others' weights."""

    topic: str
    weight: int = 1


def task_subscriptions(settings: Settings, workloads: Sequence[str] = ()) -> tuple[Subscription, ...]:
    """Every priority of `tasks` of these workloads; none named is all."""
    return _by_priority(settings, workloads, TopicNames(settings.bus.namespace).tasks)


def trajectory_subscriptions(settings: Settings, workloads: Sequence[str] = ()) -> tuple[Subscription, ...]:
    """Every priority of `trajectories` of these workloads; none named is all."""
    return _by_priority(settings, workloads, TopicNames(settings.bus.namespace).trajectories)


def group_name(settings: Settings, service: str, workloads: Sequence[str] = ()) -> str:
    """`<namespace>.<run>.<service>.<workloads joined by +>`."""
    served = "+".join(sorted(workload.name for workload in _served(settings, workloads)))
    return f"{settings.bus.namespace}.{settings.run.name}.{service}.{served}"


def retry_topics(settings: Settings, service: str) -> dict[str, float]:
    """The retry topics of a service and their delays in seconds."""
    names = TopicNames(settings.bus.namespace)
    return {names.retries(service, delay_s): delay_s for delay_s in settings.bus.retry_delays_s}


def _by_priority(
    settings: Settings, workloads: Sequence[str], topic: Callable[[str, str], str]
) -> tuple[Subscription, ...]:
    return tuple(
        Subscription(topic(workload.name, priority), weight)
        for workload in _served(settings, workloads)
        for priority, weight in zip(workload.priorities, workload.priority_weights, strict=True)
    )


def _served(settings: Settings, workloads: Sequence[str]) -> list[WorkloadSettings]:
    return [workload for workload in settings.workloads if not workloads or workload.name in workloads]
