"""A rollout process in virtual time: lanes, the engine's own admission, one token a row and step.

Real: `Admission`, `Enough`'s rule, the wait for `min_policy_version`, the messages. Modelled: a decode step takes the same time however
many rows are in it, and a new policy goes in between two tokens of what runs (`rollout.follow = "in_flight"`).
"""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np

from benchmarks.long_tail import Lengths
from benchmarks.simulated.clock import VirtualClock
from services.rollout import episodes
from services.rollout.chat import Prompt
from services.rollout.engines.admission import Admission
from services.rollout.engines.base import Generation
from shared.contracts import RoleSpan, Slot, Task, Trajectory

PROMPT = 32
"""Tokens of a prompt."""


@dataclass(eq=False, slots=True)
class _Row:
    task: Task
    slot: Slot
    tokens: int
    """Key-value slots that it may come to need."""
    length: int = 0
    began: float = 0.0
    over: bool = False


class SimulatedRollout:
    """`send` is given each trajectory when it ends."""

    def __init__(
        self,
        name: str,
        clock: VirtualClock,
        lengths: Lengths,
        *,
        rows: int,
        concurrency: int,
        step_s: float,
        seed: int,
        send: Callable[[Trajectory], None],
    ) -> None:
        self._name, self._clock, self._lengths, self._send = name, clock, lengths, send
        self._concurrency, self._step_s = concurrency, step_s
        self._random = Random(f"{seed}/{name}")
        self._admission: Admission[_Row] = Admission(rows, rows * (PROMPT + lengths.most))
        self._rows: list[_Row] = []
        self._queue: deque[Task] = deque()
        self._early: list[Task] = []
        """Tasks in a lane that wait for a newer policy."""
        self._open: dict[str, int] = {}
        """Slots of each task in a lane that are still to end."""
        self._missing: dict[str, int] = {}
        """Attempts of each that are still to come to their own end."""
        self._loaded: list[float] = [0.0]
        """When each version was served first."""
        self.row_seconds = 0.0
        self._made = 0

    @property
    def version(self) -> int:
        return len(self._loaded) - 1

    def offer(self, task: Task) -> None:
        self._queue.append(task)
        self._next()

    def load(self) -> None:
        """The next version is served from now on."""
        self._loaded.append(self._clock.now)
        early, self._early = self._early, []
        for task in early:
            self._begin(task)

    def _next(self) -> None:
        while self._queue and len(self._open) < self._concurrency:
            task = self._queue.popleft()
            self._open[task.group_id] = task.sampling.samples
            self._missing[task.group_id] = task.sampling.enough or task.sampling.samples
            self._begin(task)

    def _begin(self, task: Task) -> None:
        if task.min_policy_version > self.version:
            self._early.append(task)
            return
        for slot in task.slots():
            self._admission.submit(_Row(task, slot, PROMPT + self._lengths.most))
        self._join()

    def _join(self) -> None:
        for row in self._admission.take(len(self._rows), PROMPT + self._lengths.most):
            row.length, row.began = self._lengths.draw(self._random), self._clock.now
            self._rows.append(row)
            self._clock.after(row.length * self._step_s, lambda row=row: self._end(row))  # type: ignore[misc]

    def _end(self, row: _Row) -> None:
        if row.over:
            return
        group = row.task.group_id
        self._missing[group] -= 1
        enough = not self._missing[group]
        self._leave(row)
        if enough:
            for other in [o for o in (*self._rows, *self._admission.waiting()) if o.task.group_id == group]:
                began = other.began or self._clock.now
                other.length = min(other.length, int((self._clock.now - began) / self._step_s))
                self._leave(other, cut=True)
        self._join()
        self._next()

    def _leave(self, row: _Row, cut: bool = False) -> None:
        row.over = True
        if row in self._rows:
            self._rows.remove(row)
            self.row_seconds += self._clock.now - row.began
        else:
            self._admission.discard([row])
        group = row.task.group_id
        self._open[group] -= 1
        if not self._open[group]:
            del self._open[group], self._missing[group]
        self._send(self._trajectory(row, cut))

    def _trajectory(self, row: _Row, cut: bool) -> Trajectory:
        self._made += 1
        made = Generation(
            token_ids=np.full(row.length, 7, dtype=np.int32),
            logprobs=np.full(row.length, -1.0, dtype=np.float32),
            versions=version_runs(self._loaded, row.began, self._step_s, row.length),
            stop_reason="cut" if cut else "stop",
        )
        prompt = Prompt(np.full(PROMPT, 3, dtype=np.int32), (RoleSpan(length=PROMPT, role="user"),))
        by = episodes.Signature(f"{self._name}/{self._made}", self._name, int(self._clock.now * 1000))
        return episodes.sampled(row.task, row.slot, prompt, made, text="", by=by)


def version_runs(
    loaded: Sequence[float], began: float, step_s: float, length: int
) -> tuple[tuple[int, int], ...]:
    """Runs of (length, version) of an answer that began then; version v is served from `loaded[v]` on. Token i is drawn
    at the end of step i, by what is served then."""
    first = bisect.bisect_right(loaded, began) - 1
    bounds = [0, *(min(length, int((at - began) / step_s)) for at in loaded[first + 1 :]), length]
    runs = [(bounds[i + 1] - bounds[i], first + i) for i in range(len(bounds) - 1)]
    return tuple(run for run in runs if run[0] > 0)
