"""Which evaluations a run has, and when training waits for one.

Invariant: the names of evaluations are a pure function of the configuration and the steps done, so that a
restarted scheduler finds the ones that are complete by name and makes only those that are missing.
Training waits for evaluations at the start and at stage boundaries (they must see one policy); periodic ones
run beside it at high priority.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from shared.contracts import Step
from shared.settings import EvaluationSettings, StageSettings


@dataclass(frozen=True, slots=True)
class Appointment:
    """An evaluation to make: its name, and the policy version it needs at least."""

    name: str
    stage_index: int
    step: int
    min_version: int
    barrier: bool


class Agenda:
    """Evaluations that are still to be made, oldest first."""

    def __init__(
        self, stages: Sequence[StageSettings], evaluation: EvaluationSettings, done: set[str]
    ) -> None:
        self._stages = stages
        self._evaluation = evaluation
        self._done = done
        self._queue: deque[Appointment] = deque()
        if evaluation.at_start:
            self._add(Appointment("start", 0, 0, 0, barrier=True))

    def observe_step(self, step: Step, stage_ended: bool) -> None:
        """`step` is new: repeated ones must not be shown here."""
        kind = self._stages[step.stage_index].kind
        every = self._evaluation.every_steps
        if stage_ended:
            name = f"{step.stage_index}-{kind}-end"
        elif every and step.stage_step and step.stage_step % every == 0:
            name = f"{step.stage_index}-{kind}-{step.stage_step:05d}"
        else:
            return
        self._add(Appointment(name, step.stage_index, step.step, step.policy_version, barrier=stage_ended))

    def next(self) -> Appointment | None:
        return self._queue[0] if self._queue else None

    def finish(self, name: str) -> None:
        self._done.add(name)
        self._queue = deque(a for a in self._queue if a.name != name)

    @property
    def blocks_training(self) -> bool:
        return any(appointment.barrier for appointment in self._queue)

    def _add(self, appointment: Appointment) -> None:
        if appointment.name not in self._done:
            self._queue.append(appointment)
