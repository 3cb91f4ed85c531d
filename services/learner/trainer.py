"""The learner without the bus: intake, optimizer and checkpoints as one thing that can be killed anywhere.

Invariant: everything that a step changes is in one checkpoint: weights, moments, random state, offsets, resolved
groups, the step's own book. A trainer opened from it goes on exactly as the one that wrote it would have.
"""

from __future__ import annotations

import base64
import itertools
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from services.learner.batching import Batch
from services.learner.booking import step_record
from services.learner.checkpoint import Checkpoint, CheckpointStore
from services.learner.checkpoint_writer import CheckpointWriter
from services.learner.distributed.ranks import Ranks
from services.learner.gradient import NonFiniteStepError
from services.learner.guard.kl_budget import KlBudget, KlState
from services.learner.intake.attempts import Refusal, Terms
from services.learner.intake.groups import JudgedGroup
from services.learner.intake.intake import Intake, Refused, named_refusals
from services.learner.intake.offsets import ReplayGate, Shard
from services.learner.kept import NO_SCORES, Scores
from services.learner.metrics import StepMetrics
from services.learner.model import PolicyModel
from services.learner.objectives.presets import Objective
from services.learner.optimizer import learning_rate
from services.learner.pairing import batch_of
from services.learner.reference import ReferencePolicy
from services.learner.replica import Replica
from services.learner.restoring import restore
from services.learner.snapshot import Announcement, Origin, Snapshot, read_message
from services.learner.stages import (
    Progress,
    check_identity,
    check_stages,
    evaluated_versions,
    identity,
    stage_ended,
)
from services.learner.staging import Staged
from services.learner.start_from import start_from
from services.learner.watch import Pause, Watch
from shared.contracts import GroupFate, Policy
from shared.contracts import Step as StepMessage
from shared.errors import ConfigError, TemperError
from shared.kill_points import reached
from shared.settings import Settings, StageSettings
from shared.storage import ObjectStore

MAX_REFUSALS = 3
"""Steps refused in a row before the run ends: by then it is not the data."""


class Trainer:
    """One run's learner. Methods marked blocking belong in a thread; the others are quick."""

    def __init__(
        self,
        settings: Settings,
        store: ObjectStore,
        policy: PolicyModel,
        should_stop: Callable[[], bool] = lambda: False,
        ranks: Ranks | None = None,
        *,
        checkpoints: CheckpointStore | None = None,
    ) -> None:
        self._settings = settings
        self._store = store
        self._policy = policy
        self._should_stop = should_stop
        self._objectives = check_stages(settings)
        self.replica = Replica(policy, settings.learner, ranks)
        self._checkpoints = checkpoints or CheckpointStore(store, settings.run.name)
        self._reference = ReferencePolicy(store, settings.run.name, self.replica)
        self._writer = CheckpointWriter(settings, store, self._checkpoints, self.replica)
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
        self._cache = Path(settings.run_folder) / "cache"
        self.intake = Intake(settings.run.name, self._samples, enough=self._enough)
        self.gate = ReplayGate()
        self._terms = self._make_terms()

    # Opening

    def open(self) -> Announcement:
        """Blocking. Restores the newest checkpoint, or makes the one of version 0; what to announce first.

        Raises `StorageError` (damaged, disk full) and `ConfigError` (another configuration's checkpoint).
        """
        self._checkpoints.discard_incomplete()
        saved = self._checkpoints.newest(self._cache)
        if saved is not None:
            return self._restore(saved)
        self._begin_stage()
        if self.starts_from:
            self._take_weights()
        return self.write(self.take_copies(self._snapshot({}, self.progress)))

    def open_at(self, saved: Checkpoint, *, anew: bool = False) -> None:
        """Blocking. Goes on from any checkpoint of a run of this configuration; nothing is announced. `anew`: the
        stage's objective is another one than it was.

        Raises `ConfigError` (another configuration, or the reference that the objective needs cannot be had) and
        `StorageError`.
        """
        if anew and not self.finished:
            begun, named = saved.state["stage_step"] > 0, saved.state["reference"] is not None
            needed = self._objectives[saved.state["stage_index"]].needs_reference
            if needed and begun and not named:
                raise ConfigError(
                    f"the objective measures against the policy of the stage's beginning, which the checkpoint of step "
                    f"{saved.step} does not know: begin at step {saved.step - saved.state['stage_step']}"
                )
        self._restore(saved, anew=anew)

    def _restore(self, saved: Checkpoint, *, anew: bool = False) -> Announcement:
        state = saved.state
        check_identity(
            state["identity"], identity(self._settings, self._policy.shapes()), self._settings.run.name
        )
        restore(self.replica, saved)
        torch.set_rng_state(torch.frombuffer(bytearray(base64.b64decode(state["rng"])), dtype=torch.uint8))
        self.progress = Progress(state["step"], state["stage_index"], state["stage_step"])
        self._kl = KlState(state["kl_coefficient"], state.get("kl_since_refresh", 0))
        self._watch = Watch(self._settings, state.get("watch"))
        self._origin = Origin(*state.get("origin", ()))
        self._ancestry = [*state["ancestry"], {"lineage": state["lineage"], "until_step": state["step"]}]
        self.intake = Intake(self._settings.run.name, self._samples, state["intake"], self._enough)
        self.gate = ReplayGate(state["intake"]["offsets"])
        self._terms = self._make_terms()
        if self.objective is not None and self.objective.needs_reference:
            if anew and state["reference"] is None:
                self._reference.wanted = True
                self._reference.freeze(self.progress.stage_index)
            else:
                self._reference.load(state["reference"], self._cache)
        if anew and self.objective is not None:
            self._kl = KlBudget.of(self.objective).begin()
        steps = tuple(read_message(StepMessage, body) for body in state["steps"])
        policy: Policy = read_message(Policy, state["policy"])
        self._writer.resume(policy, saved.weights)
        return Announcement(policy, steps)

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
    def vocabulary(self) -> int:
        """The model has ids 0 to vocabulary − 1."""
        return self._policy.vocabulary

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

    # Other weights

    @property
    def starts_from(self) -> str:
        """Where the stage's weights are still to be taken from; empty where they are there."""
        begun = self.finished or self.progress.stage_step > 0
        return "" if begun or self._origin.stage_index == self.progress.stage_index else self.stage.start_from

    def adopt(self) -> StepMessage:
        """Blocking. Takes the weights that the stage starts from, as a step of its own: its policy is another one
        than that of the stage before. Seal and write follow. Raises as `start_from`."""
        source, stage = self.starts_from, self.stage
        self.progress = self.progress.adopted()
        self._take_weights()
        self._reference.renew()
        self._watch.begin_stage()
        record = self._record(self.progress, [], StepMetrics(), {}, (f"{stage.kind} starts from {source}",))
        self._unsaved.append(record)
        return record

    def _take_weights(self) -> None:
        start_from(self.starts_from, self.replica, self._settings.learner, self._cache)
        self._origin = Origin(self.progress.stage_index, self.version)
        self._terms = self._make_terms()

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

    def train(self, groups: list[JudgedGroup]) -> tuple[Batch, StepMetrics]:
        """Blocking. One optimizer step, or a roll-back where the guard says so.

        Raises `NonFiniteStepError` (weights untouched; see `refuse`) and `StepAbandonedError`.
        """
        objective, stage = self._terms.objective, self.stage
        batch = batch_of(
            groups,
            objective,
            self._settings.learner.micro_batch_tokens,
            pack=self._policy.packs,
            width=self._policy.packing_width,
        )
        rate = learning_rate(stage.learning_rate, stage.warmup_steps, self.progress.stage_step)
        referred = self.replica.reference is not None
        ruling = self._watch.ruling(self.progress.step + 1, groups, batch, referred=referred)
        metrics = self.replica.take(
            batch,
            objective,
            rate,
            self.kl_coefficient,
            ruling,
            should_stop=self._between_micro_batches(self.progress.step + 1),
        )
        target = metrics.decision.roll_back_to if metrics.decision else None
        if target is not None:
            self._writer.wait()  # it may be the one that is still being written
            # Weights, masters and moments alone: what was read, trained and resolved stays so.
            restore(self.replica, self._checkpoints.load(target, self._cache))
        return batch, metrics

    def _between_micro_batches(self, step: int) -> Callable[[], bool]:
        begun = itertools.count()

        def should_stop() -> bool:
            if next(begun):
                reached("mid_backward", step)
            return self._should_stop()

        return should_stop

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

    # Checkpoints

    def checkpoint_due(self) -> bool:
        every = self._settings.learner.checkpoint_every
        return bool(self._unsaved) and (
            self.progress.step % every == 0
            or stage_ended(self.progress, self._settings.stages)
            or self._watch.wants_checkpoint
        )

    def seal(self, positions: Mapping[Shard, int]) -> Snapshot:
        """Takes the state for a checkpoint; at the end of a stage, that of the next one's beginning."""
        made_by = self.progress
        if stage_ended(self.progress, self._settings.stages):
            self.progress = self.progress.next_stage()
            self._begin_stage()
        budget = KlBudget.of(self._terms.objective)
        if not self.finished and budget.refresh_due(self._kl):
            self._kl = budget.refreshed(self._kl)
            self._reference.renew()
        return self._snapshot(positions, made_by)

    def take_copies(self, snapshot: Snapshot) -> Staged:
        """Blocking, and quick: copies what the checkpoint of `snapshot` is written from. No step may be taken
        between the two, and the checkpoint before it must have been written."""
        return self._writer.take_copies(snapshot, self._reference)

    def write(self, staged: Staged) -> Announcement:
        """Blocking. Writes the checkpoint; steps may be taken meanwhile, in another thread.

        Raises `StorageError`; nothing of it is left then, and the checkpoint before it stays good.
        """
        return self._writer.write(staged)

    def prune(self, scores: Scores = NO_SCORES) -> list[int]:
        """Blocking. Once a newer policy is announced, the large files of old checkpoints may go; whose went."""
        return self._writer.prune(scores, self._watch.good)

    def _begin_stage(self) -> None:
        """A stage starts with a fresh optimizer: moments of another objective mislead it."""
        self.replica.forget_moments()
        self._reference.drop()
        self._watch.begin_stage()
        objective = self.objective
        if objective is not None:
            self._kl = KlBudget.of(objective).begin()
            self._reference.wanted = objective.needs_reference
        self._terms = self._make_terms()

    def _snapshot(self, positions: Mapping[Shard, int], made_by: Progress) -> Snapshot:
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
            "identity": identity(self._settings, self._policy.shapes()),
            "rng": base64.b64encode(np.asarray(torch.get_rng_state()).tobytes()).decode("ascii"),
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
            vocabulary=self._policy.vocabulary,
            max_tokens=self._policy.max_tokens,
            version=self.version,
            max_lag=self._settings.scheduler.max_lag,
            temperature=stage.temperature,
            data=bool(stage.data),
            first_version=self._origin.version if self._origin.stage_index == last else 0,
        )
