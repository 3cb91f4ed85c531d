"""The learner without the bus: intake, optimizer and checkpoints as one thing that can be killed anywhere.

Invariant: everything that a step changes is in one checkpoint: weights, moments, random state, offsets, resolved
groups, the step's own book. A trainer opened from it goes on exactly as the one that wrote it would have.
"""

from __future__ import annotations

import base64
import json
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from services.learner.batching import Batch, assemble
from services.learner.booking import step_record
from services.learner.checkpoint import Checkpoint, CheckpointStore
from services.learner.guard.kl_budget import KlBudget, KlState
from services.learner.intake.attempts import Refusal, Terms
from services.learner.intake.groups import JudgedGroup
from services.learner.intake.intake import Intake, Refused
from services.learner.intake.offsets import ReplayGate, Shard
from services.learner.model import PolicyModel
from services.learner.objectives.presets import Objective
from services.learner.optimizer import learning_rate, make_optimizer, optimizer_tensors, restore_optimizer
from services.learner.publish import announcement, make_canary
from services.learner.reference import ReferencePolicy
from services.learner.stages import Progress, check_identity, check_stages, identity, stage_ended
from services.learner.step import NonFiniteStepError, Step, StepMetrics
from shared.contracts import GroupFate, Policy, decode, encode, schema_header
from shared.contracts import Step as StepMessage
from shared.errors import TemperError
from shared.settings import Settings, StageSettings
from shared.storage import ObjectStore

MAX_REFUSALS = 3
"""Steps refused in a row before the run ends: by then it is not the data."""
_MASTER = "master."


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a checkpoint will say, taken between two steps."""

    progress: Progress
    made_by: Progress
    """Where the run was when the weights were made: differs at the end of a stage."""
    state: dict[str, Any]
    steps: tuple[StepMessage, ...]


@dataclass(frozen=True, slots=True)
class Announcement:
    """What may be told once a checkpoint is complete: the policy first, then the steps that it covers."""

    policy: Policy
    steps: tuple[StepMessage, ...]
    seconds: float = 0.0


class Trainer:
    """One run's learner. Methods marked blocking belong in a thread; the others are quick."""

    def __init__(
        self,
        settings: Settings,
        store: ObjectStore,
        policy: PolicyModel,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self._settings = settings
        self._store = store
        self._policy = policy
        self._should_stop = should_stop
        self._objectives = check_stages(settings)
        self._optimizer = make_optimizer(policy, settings.learner)
        self._checkpoints = CheckpointStore(store, settings.run.name)
        self._reference = ReferencePolicy(store, settings.run.name)
        self._samples = [stage.samples for stage in settings.stages]
        self._unsaved: list[StepMessage] = []
        self._refusals = 0
        self._dropped = 0
        self.lineage = uuid.uuid4().hex[:12]
        self._ancestry: list[dict[str, Any]] = []
        self.progress = Progress()
        self._kl = KlState(0.0)
        self.intake = Intake(settings.run.name, self._samples)
        self.gate = ReplayGate()
        self._terms = self._make_terms()

    # Opening

    def open(self) -> Announcement:
        """Blocking. Restores the newest checkpoint, or makes the one of version 0; what to announce first.

        Raises `StorageError` (damaged, disk full) and `ConfigError` (another configuration's checkpoint).
        """
        self._checkpoints.discard_incomplete()
        saved = self._checkpoints.newest(Path(self._settings.run_folder) / "cache")
        if saved is not None:
            return self._restore(saved)
        self._begin_stage()
        return self.write(self._snapshot({}, self.progress))

    def _restore(self, saved: Checkpoint) -> Announcement:
        state = saved.state
        shapes = {name: tuple(tensor.shape) for name, tensor in self._policy.named_tensors().items()}
        check_identity(state["identity"], identity(self._settings, shapes), self._settings.run.name)
        masters = {
            name.removeprefix(_MASTER): tensor
            for name, tensor in saved.optimizer.items()
            if name.startswith(_MASTER)
        }
        weights = {**saved.weights, **masters}
        with torch.no_grad():
            for name, tensor in self._policy.named_tensors().items():
                tensor.copy_(weights[name])
        restore_optimizer(
            self._policy,
            self._optimizer,
            {k: v for k, v in saved.optimizer.items() if not k.startswith(_MASTER)},
        )
        torch.set_rng_state(torch.frombuffer(bytearray(base64.b64decode(state["rng"])), dtype=torch.uint8))
        self.progress = Progress(state["step"], state["stage_index"], state["stage_step"])
        self._kl = KlState(state["kl_coefficient"], state.get("kl_since_refresh", 0))
        self._ancestry = [*state["ancestry"], {"lineage": state["lineage"], "until_step": state["step"]}]
        self.intake = Intake(self._settings.run.name, self._samples, state["intake"])
        self.gate = ReplayGate(state["intake"]["offsets"])
        self._terms = self._make_terms()
        if self.objective is not None and self.objective.kl_coefficient > 0:
            self._reference.load(self._policy, state["reference"], Path(self._settings.run_folder) / "cache")
        steps = tuple(_message(StepMessage, body) for body in state["steps"])
        return Announcement(_message(Policy, state["policy"]), steps)

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

    # Batches

    def review(self) -> tuple[list[GroupFate], list[Refused]]:
        """Resolves complete groups that can take no place in a batch; what became of them, and why."""
        fates, refused = self.intake.review(self.progress.stage_index, self._terms)
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
        return counted if self._terms.objective.dynamic_sampling and self._dropped >= drawn else None

    def _counted(self) -> list[JudgedGroup]:
        return self.intake.counted(self.progress.stage_index, self._terms)

    def train(self, groups: list[JudgedGroup]) -> tuple[Batch, StepMetrics]:
        """Blocking. One optimizer step.

        Raises `NonFiniteStepError` (weights untouched; see `refuse`) and `StepAbandonedError`.
        """
        objective, stage = self._terms.objective, self.stage
        batch = assemble(
            groups, objective, self._settings.learner.micro_batch_tokens, pack=self._policy.packs
        )
        step = Step(
            self._policy,
            self._optimizer,
            micro_batch_tokens=self._settings.learner.micro_batch_tokens,
            max_gradient_norm=self._settings.learner.max_gradient_norm,
            reference=self._reference.model,
            should_stop=self._should_stop,
        )
        rate = learning_rate(stage.learning_rate, stage.warmup_steps, self.progress.stage_step)
        return batch, step.take(batch, objective, rate, self.kl_coefficient)

    def refuse(self, groups: list[JudgedGroup], error: NonFiniteStepError) -> list[GroupFate]:
        """Resolves the groups that a refused step named. Raises `TemperError` after too many in a row."""
        self._refusals += 1
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
            )
            for group in guilty
        ]

    def book(
        self, groups: list[JudgedGroup], metrics: StepMetrics, seconds: Mapping[str, float]
    ) -> tuple[StepMessage, list[tuple[str, int, str, Refusal]]]:
        """Resolves the batch and advances: the step's record, and its refused attempts by name."""
        self._refusals = self._dropped = 0
        stage, done = self.stage, self.progress.advanced()
        for group in groups:
            self.intake.resolve(group.group_id, group.fates())
        if stage_ended(done, self._settings.stages):
            self.intake.close_stage(done.stage_index)
        record = step_record(
            run_id=self._settings.run.name,
            lineage=self.lineage,
            progress=done,
            stage=stage,
            groups=groups,
            metrics=metrics,
            fates=self.intake.take_fates(),
            ledger=self.intake.ledger,
            kl_coefficient=self.kl_coefficient,
            version=self.version,
            seconds=seconds,
        )
        attempts = sum(len(group.usable) for group in groups) if metrics.tokens else 0
        self._kl = KlBudget.of(self._terms.objective).stepped(self._kl, metrics.kl, attempts)
        self.progress = done
        self._terms = self._make_terms()
        self._unsaved.append(record)
        return record, [
            (group.group_id, index, group.slots[index].trajectory.trajectory_id, refusal)
            for group in groups
            for index, refusal in group.refusals.items()
        ]

    # Checkpoints

    def checkpoint_due(self) -> bool:
        every = self._settings.learner.checkpoint_every
        return bool(self._unsaved) and (
            self.progress.step % every == 0 or stage_ended(self.progress, self._settings.stages)
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

    def write(self, snapshot: Snapshot) -> Announcement:
        """Blocking. Writes the checkpoint of `snapshot`; no step may be taken meanwhile.

        Raises `StorageError`; nothing of it is left then, and the checkpoint before it stays good.
        """
        began = time.perf_counter()
        step = snapshot.progress.step
        try:
            weights = self._checkpoints.write_weights(step, self._policy.published_tensors())
            made_by = snapshot.made_by
            policy = announcement(
                self._settings,
                step=step,
                stage=self._settings.stages[made_by.stage_index].kind,
                stage_index=made_by.stage_index,
                weights=weights,
                canary=make_canary(self._policy, self._settings.learner.canary_tolerance),
                checkpoint_uri=self._checkpoints.uri(step),
            )
            state = {
                **snapshot.state,
                "policy": json.loads(encode(policy)),
                "steps": [json.loads(encode(record)) for record in snapshot.steps],
                "reference": self._reference.keep(
                    self._policy, snapshot.progress.stage_index, snapshot.progress.stage_step
                ),
            }
            self._checkpoints.complete(step, weights, self._optimizer_file(), state)
        except BaseException:
            self._checkpoints.discard(step)
            raise
        self._unsaved = self._unsaved[len(snapshot.steps) :]
        return Announcement(policy, snapshot.steps, time.perf_counter() - began)

    def prune(self) -> list[int]:
        """Blocking. Once a newer policy is announced, the large files of old checkpoints may go."""
        keep = self._settings.learner.keep_checkpoints
        self._reference.prune(keep)
        return self._checkpoints.prune(keep)

    def _optimizer_file(self) -> dict[str, torch.Tensor]:
        tensors = optimizer_tensors(self._policy, self._optimizer)
        if self._policy.served is not torch.float32:
            tensors.update({f"{_MASTER}{k}": v for k, v in self._policy.named_tensors().items()})
        return tensors

    def _begin_stage(self) -> None:
        """A stage starts with a fresh optimizer: moments of another objective mislead it."""
        self._optimizer.state.clear()
        self._reference.drop()
        objective = self.objective
        if objective is not None:
            budget = KlBudget.of(objective)
            self._kl = budget.begin()
            self._reference.wanted = budget.needs_reference
        self._terms = self._make_terms()

    def _snapshot(self, positions: Mapping[Shard, int], made_by: Progress) -> Snapshot:
        shapes = {name: tuple(tensor.shape) for name, tensor in self._policy.named_tensors().items()}
        state = {
            "run_id": self._settings.run.name,
            "step": self.progress.step,
            "stage_index": self.progress.stage_index,
            "stage_step": self.progress.stage_step,
            "lineage": self.lineage,
            "ancestry": self._ancestry,
            "kl_coefficient": self._kl.coefficient,
            "kl_since_refresh": self._kl.since_refresh,
            "intake": self.intake.to_state(positions),
            "identity": identity(self._settings, shapes),
            "rng": base64.b64encode(np.asarray(torch.get_rng_state()).tobytes()).decode("ascii"),
        }
        return Snapshot(self.progress, made_by, state, tuple(self._unsaved))

    def _make_terms(self) -> Terms:
        """Made anew whenever version or stage change: judgements are kept as long as they are the same object."""
        last = min(self.progress.stage_index, len(self._settings.stages) - 1)
        return Terms(
            objective=self._objectives[last],
            vocabulary=self._policy.vocabulary,
            max_tokens=self._policy.max_tokens,
            version=self.version,
            max_lag=self._settings.scheduler.max_lag,
            temperature=self._settings.stages[last].temperature,
        )


def _message(kind: type[Any], body: Any) -> Any:
    return decode(schema_header(kind), json.dumps(body).encode())


def with_seconds(steps: tuple[StepMessage, ...], **seconds: float) -> tuple[StepMessage, ...]:
    """The steps with what was not known yet when their checkpoint was written."""
    return tuple(step.model_copy(update={"seconds": {**step.seconds, **seconds}}) for step in steps)
