"""The steps of a run once more, from one of its checkpoints.

Invariant: every step is computed from the batch that was recorded for it, and checkpoints are made where the run made
them (a reference is renewed and a stage ends there): under the run's own objective the same steps come out to the last
bit, on the same build, device and number of threads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from services.learner.checkpoint import Checkpoint, CheckpointStore
from services.learner.intake.groups import JudgedGroup
from services.learner.objectives.presets import Objective
from services.learner.replay.batches import RecordedGroup, recorded_batch
from services.learner.replay.reading import Attempts
from services.learner.trainer import Trainer
from shared.contracts import Step
from shared.errors import StorageError
from shared.storage import ObjectStore


class ReplayCheckpoints(CheckpointStore):
    """Of a replay: its own, and behind them those of the run that it replays (a guard may roll back to one)."""

    def __init__(self, store: ObjectStore, run_id: str, original: CheckpointStore) -> None:
        super().__init__(store, run_id)
        self._original = original

    def load(self, step: int, cache: Path) -> Checkpoint:
        return super().load(step, cache) if step in self.steps() else self._original.load(step, cache)


def wanted_attempts(recorded: Sequence[Step], objectives: Sequence[Objective]) -> set[str]:
    """Ids of all trajectories that the steps were computed from. `objectives`: of the run's stages."""
    return {
        name
        for step in recorded
        for group in recorded_batch(step, objectives[step.stage_index])
        for name in group.attempts.values()
    }


def retrain(
    trainer: Trainer, recorded: Sequence[Step], objectives: Sequence[Objective], attempts: Attempts
) -> Iterator[tuple[Step, Step]]:
    """Blocking, a step at a time: (recorded, made again). `objectives`: those of the recorded run, by stage.

    Raises as `Trainer.train` and `Trainer.write`, and `StorageError` where the records do not fit the checkpoint.
    """
    for step in recorded:
        expected = trainer.progress.step + 1
        if trainer.finished or step.step != expected:
            raise StorageError(
                f"the record of step {step.step} does not follow the checkpoint: step {expected} was expected; "
                "the run's topics and its object store are not of one run"
            )
        made = _again(trainer, step, objectives[step.stage_index], attempts)
        if trainer.checkpoint_due():
            trainer.write(trainer.take_copies(trainer.seal({})))
            trainer.prune()
        yield step, made


def _again(trainer: Trainer, step: Step, objective: Objective, attempts: Attempts) -> Step:
    if trainer.starts_from:
        return trainer.adopt()
    if trainer.pause is not None:
        trainer.resume(trainer.pause.step)  # the run went on: there is a step after it
    batch = recorded_batch(step, objective)
    for group in batch:
        _feed(trainer, group, attempts)
    groups: list[JudgedGroup] = trainer.named([group.group_id for group in batch])
    _, metrics = trainer.train(groups)
    record, _ = trainer.book(groups, metrics, {"compute": metrics.seconds})
    return record


def _feed(trainer: Trainer, group: RecordedGroup, attempts: Attempts) -> None:
    for name in group.attempts.values():
        trainer.intake.trajectory(attempts.trajectories[name])
        if name in attempts.rewards:
            trainer.intake.reward(attempts.rewards[name])
