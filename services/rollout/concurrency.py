"""How many tasks of each workload a process has at work: as many as the engine's key-value room holds.

Invariant: a limit is never below `floor` nor above the ceiling; it grows by one at a time and only where it is what
holds its workload back; it is cut by a factor at most once in `patience_s`, since the last cut has to show first.

More tasks than that gain nothing: their requests queue in the engine or, where it takes them in without reserving,
push each other out and are read again. Fewer leave rows empty. Additive increase and multiplicative decrease lead
several workloads that share one engine to equal shares: the largest is cut, and between the marks only smaller ones
grow. Pure: the clock is passed in.

Source: Chiu and Jain, "Analysis of the increase and decrease algorithms for congestion avoidance", 1989.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from services.rollout.engines.base import EngineLoad


@dataclass(frozen=True, slots=True)
class Marks:
    """`low` and `high` are of demand: the key-value room that all requests would take over what there is. A quarter
    more than there is keeps the engine full while a finished row is told of and the next one is read."""

    low: float = 0.85
    high: float = 1.25
    factor: float = 0.5
    floor: int = 1
    patience_s: float = 5.0

    def __post_init__(self) -> None:
        if not (0 < self.low < self.high and 0 < self.factor < 1 and self.floor >= 1):
            raise ValueError(f"{self}: 0 < low < high, 0 < factor < 1 and floor >= 1 must hold")


def demand(load: EngineLoad) -> float:
    """Key-value room that running and waiting requests would take together, over what there is."""
    if not load.running:
        return float(load.waiting > 0)
    return load.kv_use * (load.running + load.waiting) / load.running


class Concurrency:
    """Limits by workload, at the ceiling to begin with."""

    def __init__(self, workloads: Iterable[str], ceiling: int, marks: Marks | None = None) -> None:
        self._marks = marks or Marks()
        self._ceiling = max(ceiling, self._marks.floor)
        self._limits = dict.fromkeys(workloads, self._ceiling)
        self._preempted = 0
        self._cut_at = -float("inf")
        self.cuts = 0

    @property
    def limits(self) -> Mapping[str, int]:
        """Tasks at once, of each workload."""
        return self._limits

    def full(self, running: Mapping[str, int]) -> frozenset[str]:
        """Workloads of which no further task may start; `running`: tasks at work of each."""
        return frozenset(name for name, limit in self._limits.items() if running.get(name, 0) >= limit)

    def observe(self, load: EngineLoad, running: Mapping[str, int], now_s: float) -> bool:
        """Takes in a look at the engine; whether a limit has grown."""
        preempted, self._preempted = load.preempted > self._preempted, load.preempted
        wanted = demand(load)
        if preempted or wanted > self._marks.high:
            self._cut(running, now_s)
            return False
        most = self._ceiling
        if wanted >= self._marks.low:
            most = max((self._limits[name] for name, count in running.items() if count), default=0)
        held_back = [name for name in self.full(running) if self._limits[name] < most]
        for name in held_back:
            self._limits[name] += 1
        return bool(held_back)

    def _cut(self, running: Mapping[str, int], now_s: float) -> None:
        """From what is at work and not from the limit, which may be far above it. Who has less at work than another
        did not do it."""
        if now_s - self._cut_at < self._marks.patience_s:
            return
        self._cut_at = now_s
        self.cuts += 1
        at_work = {name: min(limit, running.get(name, 0)) for name, limit in self._limits.items()}
        most = max(at_work.values(), default=0)
        for name, count in at_work.items():
            if most and count == most:
                self._limits[name] = max(self._marks.floor, int(count * self._marks.factor))
