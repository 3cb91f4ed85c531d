"""Admission of training groups: a pure state machine, clock passed in.

Invariant (4 of the design): groups in flight never pass (max_lag + 1) × groups_per_step, nor what the stage
still needs; while a stage is unfinished at least one batch may be in flight, so `max_lag = 0` never starves.
A group is in flight from its task to the step or notice that resolves it. No new group is of a domain in `held`. A
stage that begins from other weights has no group before the step that took them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from services.scheduler.mix import DomainMix
from services.scheduler.seeds import train_seed
from shared.contracts import GroupFate, Step
from shared.settings import DomainSettings, StageSettings

DATA = ""
"""The domain of a group of a data set; its seed is its position there."""

StepEffect = Literal["repeated", "advanced", "stage_ended"]


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """One training group: what to attempt, and which attempt this is."""

    group_id: str
    stage_index: int
    index: int
    domain: str
    seed: int
    attempt: int = 1
    scheduled_s: float = 0.0
    oldest_version: int = 0
    """No older policy may attempt it: the stage began with this one."""


def group_id(stage_index: int, kind: str, index: int) -> str:
    return f"{stage_index}-{kind}-{index:07d}"


def parse_group_id(text: str) -> tuple[int, int] | None:
    """(stage index, group index) of a training group's id, None for any other."""
    parts = text.split("-")
    if len(parts) != 3 or not (parts[0].isdecimal() and parts[2].isdecimal()):
        return None
    return int(parts[0]), int(parts[2])


class TrainingPlan:
    """What to schedule next, given what was scheduled and what came back."""

    def __init__(
        self,
        stages: Sequence[StageSettings],
        domains: Sequence[DomainSettings],
        *,
        run_seed: int,
        max_lag: int,
        deadline_s: float,
        max_attempts: int,
    ) -> None:
        self._stages = stages
        self._domains = domains
        self._run_seed = run_seed
        self._max_lag = max_lag
        self._deadline_s = deadline_s
        self._max_attempts = max_attempts
        self.stage_index = 0
        self.stage_step = 0
        self.step = 0
        self._first_version = 0
        self._awaits_start = False
        self._planned: list[GroupPlan] = []
        self._mix = self._mix_of(0)
        self._in_flight: dict[str, GroupPlan] = {}
        self._verified: dict[str, set[int]] = {}
        self._abandoned: set[str] = set()
        self._resolved: set[int] = set()
        self.held: set[str] = set()
        """Domains of which nothing new is scheduled, by the name under which the run declares them."""

    @property
    def finished(self) -> bool:
        return self.stage_index >= len(self._stages)

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    @property
    def allowed(self) -> int:
        """How many groups may be in flight now."""
        if self.finished or self._awaits_start:
            return 0
        stage = self._stages[self.stage_index]
        steps_left = stage.steps - self.stage_step
        return min(self._max_lag + 1, steps_left) * stage.groups_per_step

    @property
    def starved(self) -> bool:
        """Whether groups are wanted and every domain of the stage is held back."""
        return len(self._in_flight) < self.allowed and not self._can_plan()

    def admit(self, now_s: float) -> list[GroupPlan]:
        """The groups to schedule now, each counted as in flight from here on."""
        fresh = []
        while len(self._in_flight) < self.allowed and self._can_plan():
            plan = replace(self._plan(len(self._planned), self.held), scheduled_s=now_s)
            self._in_flight[plan.group_id] = plan
            fresh.append(plan)
        return fresh

    def overdue(self, now_s: float) -> tuple[list[GroupPlan], list[str]]:
        """(groups to schedule again, group ids to abandon): past their deadline and not yet verified.

        A group is given up once, after `max_group_attempts`; it stays in flight until the learner books it.
        """
        again: list[GroupPlan] = []
        given_up: list[str] = []
        for plan in list(self._in_flight.values()):
            if now_s - plan.scheduled_s < self._deadline_s or self._is_verified(plan):
                continue
            if plan.domain in self.held:
                continue  # `give_up_held` is their end
            if plan.attempt < self._max_attempts:
                renewed = replace(plan, attempt=plan.attempt + 1, scheduled_s=now_s)
                self._in_flight[plan.group_id] = renewed
                again.append(renewed)
            elif plan.group_id not in self._abandoned:
                self._abandoned.add(plan.group_id)
                given_up.append(plan.group_id)
        return again, given_up

    def give_up_held(self) -> list[str]:
        """Group ids to abandon, each once: in flight, and of a domain that is held back."""
        given_up = [
            plan.group_id
            for plan in self._in_flight.values()
            if plan.domain in self.held and plan.group_id not in self._abandoned
        ]
        self._abandoned.update(given_up)
        return given_up

    def observe_scheduled(
        self, group: str, attempt: int, scheduled_s: float, domain: str = "", seed: int = -1
    ) -> None:
        """A task of an earlier life of this scheduler, read back from its topic. `domain` and `seed` are what it was
        really made from: holds of that time may have made it another than the weights alone would."""
        where = parse_group_id(group)
        if where is None or where[0] != self.stage_index or self.finished:
            return
        while len(self._planned) <= where[1]:
            self._plan(len(self._planned))
        self._correct(where[1], domain, seed)
        if where[1] in self._resolved:
            return
        known = self._in_flight.get(group)
        plan = self._planned[where[1]]
        if known is None or known.attempt < attempt:
            self._in_flight[group] = replace(plan, attempt=attempt, scheduled_s=scheduled_s)

    def observe_reward(self, group: str, sample_index: int) -> None:
        if group in self._in_flight:
            self._verified.setdefault(group, set()).add(sample_index)

    def observe_resolved(self, groups: Iterable[GroupFate]) -> None:
        """Groups that a step or a notice booked: no longer in flight, and never scheduled again."""
        for group in groups:
            self._in_flight.pop(group.group_id, None)
            self._verified.pop(group.group_id, None)
            where = parse_group_id(group.group_id)
            if where is not None and where[0] == self.stage_index:
                self._resolved.add(where[1])

    def observe_step(self, step: Step) -> StepEffect:
        """Takes in a step. A repeated one (a restored learner tells its last ones again) changes nothing."""
        if step.step <= self.step:
            self.observe_resolved(step.groups)
            return "repeated"
        if step.stage_index != self.stage_index:
            self._enter(step.stage_index)
        self.observe_resolved(step.groups)
        self.step = step.step
        self.stage_step = step.stage_step
        if step.stage_step == 0:
            self._awaits_start, self._first_version = False, step.policy_version
        if self.stage_step < self._stages[self.stage_index].steps:
            return "advanced"
        self._enter(self.stage_index + 1)
        return "stage_ended"

    def _enter(self, stage_index: int) -> None:
        self.stage_index = stage_index
        self.stage_step = 0
        self._planned = []
        self._in_flight.clear()
        self._verified.clear()
        self._abandoned.clear()
        self._resolved.clear()
        if not self.finished:
            self._mix = self._mix_of(stage_index)
            self._awaits_start = bool(self._stages[stage_index].start_from)

    def _mix_of(self, stage_index: int) -> DomainMix:
        names = self._stages[stage_index].domains
        return DomainMix({d.name: d.weight for d in self._domains if not names or d.name in names})

    def _can_plan(self) -> bool:
        return bool(self._stages[self.stage_index].data) or self._mix.can_pick(self.held)

    def _correct(self, index: int, domain: str, seed: int) -> None:
        plan = self._planned[index]
        if plan.domain == DATA or domain not in self._mix or (domain, seed) == (plan.domain, plan.seed):
            return
        self._mix.correct(plan.domain, domain)
        self._planned[index] = replace(plan, domain=domain, seed=seed)

    def _plan(self, index: int, held: Collection[str] = ()) -> GroupPlan:
        stage = self._stages[self.stage_index]
        if stage.data:
            domain, seed = DATA, index
        else:
            domain, counter = self._mix.pick(held)
            seed = train_seed(self._run_seed, self.stage_index, domain, counter)
        plan = GroupPlan(
            group_id=group_id(self.stage_index, stage.kind, index),
            stage_index=self.stage_index,
            index=index,
            domain=domain,
            seed=seed,
            oldest_version=self._first_version,
        )
        self._planned.append(plan)
        return plan

    def _is_verified(self, plan: GroupPlan) -> bool:
        wanted = self._stages[plan.stage_index].enough
        return len(self._verified.get(plan.group_id, ())) >= wanted
