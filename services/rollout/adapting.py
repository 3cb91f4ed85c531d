"""The limits of `concurrency.py` on this process: what is at work by topic in, closed topics out.

Invariant: limits are of workloads, whatever their topics and priorities; nothing here starts or ends a task.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

import structlog

from services.rollout.concurrency import Concurrency, demand
from services.rollout.engines.base import EngineLoad
from shared.bus.topics import TopicNames
from shared.settings import Settings

LOOK_S: Final = 1.0
"""Between two looks at the engine: several decode steps, and well under the time of an attempt."""

_log = structlog.get_logger(__name__)


class Adapting:
    """`capacity` is the engine's."""

    def __init__(self, settings: Settings, capacity: Callable[[], EngineLoad]) -> None:
        rollout, names = settings.rollout, TopicNames(settings.bus.namespace)
        served = [w for w in settings.workloads if not rollout.workloads or w.name in rollout.workloads]
        self._workload_of = {names.tasks(w.name, p): w.name for w in served for p in w.priorities}
        self._limits = Concurrency([w.name for w in served], rollout.concurrency)
        self._adapts = rollout.adapt_concurrency
        self._capacity = capacity

    def closed(self, running: Mapping[str, int]) -> frozenset[str]:
        """Topics of which no task may start now; `running`: tasks at work by topic."""
        full = self._limits.full(self._by_workload(running))
        return frozenset(topic for topic, workload in self._workload_of.items() if workload in full)

    async def run(self, running: Callable[[], Mapping[str, int]], look_again: Callable[[], None]) -> None:
        """Until it is cancelled. `look_again` is called when a topic may have come to be open."""
        while True:
            await asyncio.sleep(LOOK_S)
            if not self._adapts:
                continue
            before, load = dict(self._limits.limits), self._capacity()
            if self._limits.observe(load, self._by_workload(running()), time.monotonic()):
                look_again()
            if self._limits.limits != before:
                _log.info(
                    "concurrency.changed",
                    limits=dict(self._limits.limits),
                    demand=round(demand(load), 2),
                    preempted=load.preempted,
                )

    def gauges(self) -> dict[str, float]:
        load = self._capacity()
        limits = {f"concurrency.{name}": float(limit) for name, limit in self._limits.limits.items()}
        return {**limits, "key_value_use": load.kv_use, "preempted": load.preempted}

    def _by_workload(self, running: Mapping[str, int]) -> Mapping[str, int]:
        counts: Counter[str] = Counter()
        for topic, count in running.items():
            if topic in self._workload_of:
                counts[self._workload_of[topic]] += count
        return counts
