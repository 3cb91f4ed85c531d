"""Which groups make a batch, and what happens to a step that is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from learner_builders import RUN, reward, trajectory
from learner_models import small_policy

from services.learner.course import MAX_REFUSALS
from services.learner.gradient import NonFiniteStepError
from services.learner.intake.join import Arrival
from services.learner.intake.offsets import Place
from services.learner.trainer import Trainer
from shared.errors import TemperError
from shared.settings import parse_settings
from shared.storage import ObjectStore


def trainer_of(folder: Path, preset: str, **overrides: Any) -> Trainer:
    settings = parse_settings(
        {
            "run": {"name": RUN, "folder": str(folder / "runs")},
            "model": {"path": str(folder)},
            "domains": [{"name": "sums"}],
            "stages": [
                {
                    "kind": "rl",
                    "steps": 2,
                    "groups_per_step": 2,
                    "group_size": 2,
                    "objective": {"preset": preset, "overrides": overrides},
                }
            ],
        }
    )
    trainer = Trainer(settings, ObjectStore(f"file://{folder / 'objects'}"), small_policy())
    trainer.open()
    return trainer


def feed(trainer: Trainer, index: int, values: tuple[float, float]) -> None:
    for sample, value in enumerate(values):
        made = trajectory(f"0-rl-{index:07d}", sample)
        trainer.intake.trajectory(Arrival(made, Place("t", 0, 4 * index + 2 * sample)))
        trainer.intake.reward(Arrival(reward(made, value), Place("r", 0, 4 * index + 2 * sample)))


def names(trainer: Trainer) -> list[str] | None:
    groups = trainer.next_batch()
    return None if groups is None else [group.group_id[-1] for group in groups]


def test_groups_without_signal_take_a_place_in_the_batch(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, "grpo")
    feed(trainer, 0, (1.0, 1.0))
    assert trainer.review() == ([], []) and names(trainer) is None and trainer.missing() == 1
    feed(trainer, 1, (0.0, 1.0))
    assert names(trainer) == ["0", "1"]


def test_with_dynamic_sampling_they_are_told_at_once_and_replaced(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, "dapo")
    feed(trainer, 0, (1.0, 1.0))
    fates, _ = trainer.review()
    assert [fate.fates for fate in fates] == [("zero_signal", "zero_signal")]
    feed(trainer, 1, (0.0, 1.0))
    feed(trainer, 2, (1.0, 0.0))
    trainer.review()
    assert names(trainer) == ["1", "2"]


def test_dynamic_sampling_does_not_draw_for_ever(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, "dapo", max_drawn_batches=2)
    feed(trainer, 0, (0.0, 1.0))
    for index in range(1, 4):
        feed(trainer, index, (1.0, 1.0))
    trainer.review()
    assert names(trainer) is None
    feed(trainer, 4, (1.0, 1.0))
    trainer.review()
    assert names(trainer) == ["0"]
    groups = trainer.next_batch() or []
    _, metrics = trainer.train(groups)
    record, _ = trainer.book(groups, metrics, {})
    assert record.trained_trajectories == 2 and record.tokens == {"trained": 4, "zero_signal": 16}
    assert names(trainer) is None  # and the count begins again


def test_a_refused_step_gives_up_the_groups_that_it_names(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, "grpo")
    for index in range(2):
        feed(trainer, index, (0.0, 1.0))
    error = NonFiniteStepError("the loss is not finite", ("0-rl-0000001/0/1",))
    (fate,) = trainer.refuse(trainer.next_batch() or [], error)
    assert fate.group_id == "0-rl-0000001" and fate.fates == ("invalid", "invalid")
    assert trainer.missing() == 1  # the other group waits for company
    for index in range(2, 1 + MAX_REFUSALS):
        feed(trainer, index, (0.0, 1.0))
        named = NonFiniteStepError("the loss is not finite", (f"0-rl-000000{index}/0/1",))
        if index < MAX_REFUSALS:
            trainer.refuse(trainer.next_batch() or [], named)
        else:
            with pytest.raises(TemperError, match="3 steps in a row"):
                trainer.refuse(trainer.next_batch() or [], named)
