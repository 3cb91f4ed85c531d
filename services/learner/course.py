"""Where a run is and what it learns next: all of a learner but its tensors.

Invariant: everything that a step changes here is in the state of its checkpoint: offsets, resolved groups, the step's own
book, KL coefficient and guard. What is opened from it goes on as the one that wrote it would have.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from services.learner.booking import step_record
from services.learner.gradient import NonFiniteStepError
from services.learner.guard.kl_budget import KlBudget, KlState
from services.learner.intake.attempts import Refusal, Terms
from services.learner.intake.groups import JudgedGroup
from services.learner.intake.intake import Intake, Refused, named_refusals
from services.learner.intake.offsets import ReplayGate, Shard
from services.learner.metrics import StepMetrics
from services.learner.objectives.presets import Objective
from services.learner.snapshot import Origin, Snapshot
from services.learner.stages import Progress, check_stages, evaluated_versions, stage_ended
from services.learner.watch import Pause, Watch
from shared.contracts import GroupFate
from shared.contracts import Step as StepMessage
from shared.errors import TemperError
from shared.settings import Settings, StageSettings

MAX_REFUSALS = 3
"""Steps refused in a row before the run ends: by then it is not the data."""


class Course:
    """Of one run. Quick: nothing is computed here, read or written. `vocabulary`: the model has ids below it;
    `max_tokens`: it reads no longer sequences."""

    def __init__(self, settings: Settings, vocabulary: int, max_tokens: int) -> None:
        self._settings = settings
        self._objectives = check_stages(settings)
        self.vocabulary = vocabulary
        self._max_tokens = max_tokens
        self._samples = [stage.samples for stage in settings.stages]
        self._enough = [stage.enough for stage in settings.stages]
        self._unsaved: list[StepMessage] = []
        self._refusals = 0
        self._dropped = 0
        self.lineage = uuid.uuid4().hex[:12]
        self._ancestry: list[dict[str, Any]] = []
        self.progress = Progress()
        self._kl = KlState(0.0)
        self._watch = Watch(settings)
        self._origin = Origin()
        self.intake = Intake(settings.run.name, self._samples, enough=self._enough)
        self.gate = ReplayGate()
        self._terms = self._make_terms()

    def _resume(self, state: Mapping[str, Any]) -> None:
        """Goes on where a checkpoint's state was taken."""
        self.progress = Progress(state["step"], state["stage_index"], state["stage_step"])
        self._kl = KlState(state["kl_coefficient"], state.get("kl_since_refresh", 0))
        self._watch = Watch(self._settings, state.get("watch"))
        self._origin = Origin(*state.get("origin", ()))
        self._ancestry = [*state["ancestry"], {"lineage": state["lineage"], "until_step": state["step"]}]
        self.intake = Intake(self._settings.run.name, self._samples, state["intake"], self._enough)
        self.gate = ReplayGate(state["intake"]["offsets"])
        self._terms = self._make_terms()

    # Where the run is

    @property
    def finished(self) -> bool:
        return self.progress.stage_index >= len(self._settings.stages)

    @property
    def stage(self) -> StageSettings:
        return self._settings.stages[self.progress.stage_index]

    @property
    def objective(self) -> Objective | None:
        """Of the current stage; None when all are done."""
        return None if self.finished else self._objectives[self.progress.stage_index]

    @property
    def kl_coefficient(self) -> float:
        """Of the next step."""
        return self._kl.coefficient

    @property
    def version(self) -> int:
        return self.progress.step

    @property
    def evaluated(self) -> frozenset[int]:
        """Versions that are measured sooner or later."""
        return evaluated_versions(self._settings, self.version)

    @property
    def pause(self) -> Pause | None:
        """The guard's, until `resume`."""
        return self._watch.pause

    def resume(self, step: int) -> bool:
        """Whether a word to go on after `step` ends the pause."""
        return self._watch.resume(step)

    @property
    def starts_from(self) -> str:
        """Where the stage's weights are still to be taken from; empty where they are there."""
        begun = self.finished or self.progress.stage_step > 0
        return "" if begun or self._origin.stage_index == self.progress.stage_index else self.stage.start_from

    # Batches

    def review(self) -> tuple[list[GroupFate], list[Refused]]:
        """Resolves complete groups that can take no place in a batch; what became of them, and why."""
        fates, refused, judged = self.intake.review(self.progress.stage_index, self._terms)
        self._watch.judged(judged)
        self._dropped += sum("zero_signal" in fate.fates for fate in fates)
        return fates, refused

    def missing(self) -> int:
        """Groups that the next step still waits for."""
        return max(0, self.stage.groups_per_step - len(self._counted()))

    def next_batch(self) -> list[JudgedGroup] | None:
        """The groups of the next step, in order of completion; None while they are too few.

        With dynamic sampling, after `max_drawn_batches` batches of groups without signal, what there is.
        """
        if self.finished:
            return None
        counted = self._counted()
        if len(counted) >= self.stage.groups_per_step:
            return counted[: self.stage.groups_per_step]
        drawn = self._terms.objective.max_drawn_batches * self.stage.groups_per_step
        return counted if self._terms.objective.skips_ties and self._dropped >= drawn else None

    def named(self, group_ids: Sequence[str]) -> list[JudgedGroup]:
        """A batch that somebody else has chosen."""
        return self.intake.named(group_ids, self._terms)

    def _counted(self) -> list[JudgedGroup]:
        return self.intake.counted(self.progress.stage_index, self._terms)

    def refuse(self, groups: list[JudgedGroup], error: NonFiniteStepError) -> list[GroupFate]:
        """Resolves the groups that a refused step named. Raises `TemperError` after too many in a row."""
        self._refusals += 1
        self._watch.refused()
        if self._refusals >= MAX_REFUSALS:
            raise TemperError(
                f"{self._refusals} steps in a row were not finite at step {self.progress.step + 1}: "
                f"lower the stage's learning_rate, or resume an earlier model; last: {error}"
            ) from error
        named = set(error.trajectories)
        guilty = [
            group
            for group in groups
            if any(slot.trajectory.trajectory_id in named for slot in group.usable_slots())
        ]
        return [
            self.intake.resolve(
                group.group_id,
                {**dict.fromkeys(group.slots, "invalid"), **{i: r.fate for i, r in group.refusals.items()}},
                {**dict.fromkeys(group.slots, "the loss of its group is not finite"), **group.reasons()},
            )
            for group in guilty
        ]

    # Steps

    def book(
        self, groups: list[JudgedGroup], metrics: StepMetrics, seconds: Mapping[str, float]
    ) -> tuple[StepMessage, list[tuple[str, int, str, Refusal]]]:
        """Resolves the batch and advances: the step's record, and its refused attempts by name."""
        self._refusals = self._dropped = 0
        done = self.progress.advanced()
        for group in groups:
            self.intake.settle(group, dropped=metrics.dropped)
        self._watch.judged(groups)
        notes = self._watch.booked(done.step, metrics.decision)
        if stage_ended(done, self._settings.stages):
            self.intake.close_stage(done.stage_index)
        record = self._record(done, groups, metrics, seconds, notes)
        learnt = bool(metrics.tokens) and not metrics.dropped and not metrics.silent
        attempts = sum(len(group.usable) for group in groups) if learnt else 0
        self._kl = KlBudget.of(self._terms.objective).stepped(self._kl, metrics.kl, attempts)
        self.progress = done
        self._terms = self._make_terms()
        self._unsaved.append(record)
        return record, [refused for group in groups for refused in named_refusals(group)]

    def _record(
        self,
        done: Progress,
        groups: list[JudgedGroup],
        metrics: StepMetrics,
        seconds: Mapping[str, float],
        notes: tuple[str, ...],
    ) -> StepMessage:
        """Of the step that `done` counts in: it books every group that was resolved since the one before."""
        return step_record(
            run_id=self._settings.run.name,
            lineage=self.lineage,
            progress=done,
            stage=self._settings.stages[done.stage_index],
            groups=groups,
            metrics=metrics,
            fates=self.intake.take_fates(),
            ledger=self.intake.ledger,
            kl_coefficient=self.kl_coefficient,
            version=self.version,
            seconds=seconds,
            notes=notes,
        )

    def checkpoint_due(self) -> bool:
        every = self._settings.learner.checkpoint_every
        return bool(self._unsaved) and (
            self.progress.step % every == 0
            or stage_ended(self.progress, self._settings.stages)
            or self._watch.wants_checkpoint
        )

    def _begin_stage(self) -> None:
        self._watch.begin_stage()
        if self.objective is not None:
            self._kl = KlBudget.of(self.objective).begin()
        self._terms = self._make_terms()

    def _snapshot(
        self, positions: Mapping[Shard, int], made_by: Progress, more: Mapping[str, Any]
    ) -> Snapshot:
        """For the checkpoint of now, with `more` in its state; the steps that it covers need no other."""
        guard = self._watch.covered(self.progress.step)
        state = {
            "run_id": self._settings.run.name,
            "step": self.progress.step,
            "stage_index": self.progress.stage_index,
            "stage_step": self.progress.stage_step,
            "lineage": self.lineage,
            "ancestry": self._ancestry,
            "kl_coefficient": self._kl.coefficient,
            "kl_since_refresh": self._kl.since_refresh,
            "watch": self._watch.to_state(guard),
            "origin": [self._origin.stage_index, self._origin.version],
            "intake": self.intake.to_state(positions),
            **more,
        }
        steps, self._unsaved = tuple(self._unsaved), []
        self._watch.sealed(guard)
        return Snapshot(self.progress, made_by, state, steps)

    def _make_terms(self) -> Terms:
        """Made anew whenever version or stage change: judgements are kept as long as they are the same object."""
        last = min(self.progress.stage_index, len(self._settings.stages) - 1)
        stage = self._settings.stages[last]
        return Terms(
            objective=self._objectives[last],
            vocabulary=self.vocabulary,
            max_tokens=self._max_tokens,
            version=self.version,
            max_lag=self._settings.scheduler.max_lag,
            temperature=stage.temperature,
            data=bool(stage.data),
            first_version=self._origin.version if self._origin.stage_index == last else 0,
        )
