"""The learner without the bus: intake, optimizer and checkpoints as one thing that can be killed anywhere.

Invariant: everything that a step changes is in one checkpoint: weights, moments, random state, and the state of the
course. A trainer opened from it goes on exactly as the one that wrote it would have.
"""

from __future__ import annotations

import base64
import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from services.learner.batching import Batch
from services.learner.checkpoint import Checkpoint, CheckpointStore
from services.learner.checkpoint_writer import CheckpointWriter
from services.learner.course import Course
from services.learner.distributed.ranks import Ranks
from services.learner.guard.kl_budget import KlBudget
from services.learner.intake.groups import JudgedGroup
from services.learner.intake.offsets import Shard
from services.learner.kept import NO_SCORES, Scores
from services.learner.metrics import StepMetrics
from services.learner.model import PolicyModel
from services.learner.optimizer import learning_rate
from services.learner.pairing import batch_of
from services.learner.reference import ReferencePolicy
from services.learner.replica import Replica
from services.learner.restoring import restore
from services.learner.snapshot import Announcement, Origin, Snapshot, read_message
from services.learner.stages import (
    check_identity,
    identity,
    stage_ended,
)
from services.learner.staging import Staged
from services.learner.start_from import start_from
from shared.contracts import Policy
from shared.contracts import Step as StepMessage
from shared.errors import ConfigError
from shared.kill_points import reached
from shared.settings import Settings
from shared.storage import ObjectStore


class Trainer(Course):
    """One run's learner: its course, and the tensors that follow it. Methods marked blocking belong in a thread; the
    others are quick."""

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
        super().__init__(settings, policy.vocabulary, policy.max_tokens)
        self._policy = policy
        self._should_stop = should_stop
        self.replica = Replica(policy, settings.learner, ranks)
        self._checkpoints = checkpoints or CheckpointStore(store, settings.run.name)
        self._reference = ReferencePolicy(store, settings.run.name, self.replica)
        self._writer = CheckpointWriter(settings, store, self._checkpoints, self.replica)
        self._cache = Path(settings.run_folder) / "cache"

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
        return self.write(self.take_copies(self._snapshot({}, self.progress, self._tensors_state())))

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
        self._resume(state)
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

    # Other weights

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

    # Steps

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

    # Checkpoints

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
        return self._snapshot(positions, made_by, self._tensors_state())

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
        super()._begin_stage()
        self._reference.wanted = self.objective is not None and self.objective.needs_reference

    def _tensors_state(self) -> dict[str, Any]:
        """What a checkpoint's state says of the tensors beside it."""
        return {
            "identity": identity(self._settings, self._policy.shapes()),
            "rng": base64.b64encode(np.asarray(torch.get_rng_state()).tobytes()).decode("ascii"),
        }
