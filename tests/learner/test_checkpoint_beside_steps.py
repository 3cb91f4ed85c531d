"""A checkpoint is written while the next step is taken: from copies, and waited for where it is needed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from learner_builders import demonstration
from learner_world import STAGES, World, steps, versions, with_learner
from test_guard_wired import Run, settings_of
from test_learner_resume import Life, bytes_of, log_of, run_settings

from services.learner.checkpoint_folders import CheckpointFolders
from services.learner.staging import HostCopies
from shared.contracts import Evaluation, encode
from shared.contracts.control import DomainResult
from shared.settings import Settings
from shared.storage import ObjectStore


def test_what_is_written_is_what_was_copied(tmp_path: Path) -> None:
    settings = run_settings(tmp_path)
    life = Life(settings, log_of()[:3])
    trainer = life.live()
    staged = trainer.take_copies(trainer.seal(life.positions))
    left = bytes_of(trainer)
    with torch.no_grad():  # a step
        for tensor in trainer._policy.named_tensors().values():
            tensor.add_(1.0)
    for state in trainer.replica.optimizer.state.values():
        state["exp_avg"].zero_()
    announced = trainer.write(staged)
    again = Life(settings, [])
    assert bytes_of(again.live(seed=5)) == left
    assert encode(again.told[0].policy) == encode(announced.policy)


def test_copies_are_put_into_the_same_memory(tmp_path: Path) -> None:
    copies = HostCopies()
    tensors = {"a": torch.arange(4.0), "b": torch.ones(2, 3, dtype=torch.bfloat16)}
    first = copies.of(tensors)
    places = {name: tensor.data_ptr() for name, tensor in first.items()}
    tensors["a"] += 1
    second = copies.of(tensors)
    assert {name: tensor.data_ptr() for name, tensor in second.items()} == places
    assert torch.equal(second["a"], tensors["a"]) and second["b"].dtype is torch.bfloat16
    assert set(copies.of({"a": torch.zeros(5)})) == {"a"}


def test_a_roll_back_waits_for_what_is_being_written(tmp_path: Path) -> None:
    """It may be to the checkpoint on its way: the stage's first is good at once, before any step has proven it."""
    bound = {"metric": "logprob_gap_mean", "limit": 0.5, "action": "roll_back"}
    run = Run(settings_of(tmp_path, bound))
    run.step()
    trainer = run.trainer
    staged = trainer.take_copies(trainer.seal({}))
    run.feed(shift=-3.0)
    run.feed(shift=-3.0)
    trainer.review()
    groups = trainer.next_batch()
    assert groups is not None
    decided: list[Any] = []
    training = threading.Thread(target=lambda: decided.append(trainer.train(groups)[1].decision))
    training.start()
    training.join(0.5)
    assert training.is_alive()
    trainer.write(staged)
    training.join(10)
    assert decided and decided[0].action == "roll_back"


def test_a_failed_write_lets_nobody_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Life(run_settings(tmp_path), log_of()[:3]).live()
    staged = trainer.take_copies(trainer.seal({}))

    def broken(*arguments: Any) -> Any:
        raise OSError("the disk is gone")

    monkeypatch.setattr(ObjectStore, "put_bytes", broken)
    with pytest.raises(OSError, match="the disk is gone"):
        trainer.write(staged)
    trainer._writer.wait()


def test_the_best_measured_policy_keeps_its_weights(learner_settings: Callable[..., Settings]) -> None:
    learner = {"keep_checkpoints": 1, "keep": {"best": 1}}
    stages = [{**STAGES[0], "steps": 3, "groups_per_step": 1}]
    settings = learner_settings(stages=stages, learner=learner, evaluation={"every_steps": 1})

    def measured(version: int, passed: int) -> Evaluation:
        return Evaluation(
            run_id=settings.run.name, name=f"at-{version}", stage_index=0, step=version, first_version=version,
            last_version=version, domains={"arithmetic": DomainResult(passed=passed, count=10)},
        )  # fmt: skip

    async def script(world: World) -> None:
        for version, passed in ((0, 1), (1, 9), (2, 5)):
            await world.until(lambda seen, n=version: n in versions(seen), f"version {version}")
            await world.producer.send(world.names.control, measured(version, passed))
            # Evaluations reach the learner by a topic of their own: the step after it must see this one.
            await asyncio.sleep(1.0)
            await world.attempt(demonstration(f"0-sft-{version:07d}"))
        await world.until(lambda seen: 3 in steps(seen), "the last step")

    asyncio.run(with_learner(settings, script))
    folders = CheckpointFolders(ObjectStore(settings.storage_uri), settings.run.name)
    assert folders.held() == [1, 3]
