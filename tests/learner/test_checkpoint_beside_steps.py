"""A checkpoint is written while the next step is taken: from copies, and waited for where it is needed."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from test_learner_resume import Life, bytes_of, log_of, run_settings

from services.learner.staging import HostCopies
from shared.contracts import encode
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
    """The stage's first checkpoint is good at once, so the very next step may go back to it."""
    settings = run_settings(tmp_path)
    trainer = Life(settings, log_of()[:3]).live()
    staged = trainer.take_copies(trainer.seal({}))
    back = threading.Event()
    waiting = threading.Thread(target=lambda: (trainer._writer.wait(), back.set()))
    waiting.start()
    assert not back.wait(0.2)
    trainer.write(staged)
    assert back.wait(5)
    waiting.join()


def test_a_failed_write_lets_nobody_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Life(run_settings(tmp_path), log_of()[:3]).live()
    staged = trainer.take_copies(trainer.seal({}))

    def broken(*arguments: Any) -> Any:
        raise OSError("the disk is gone")

    monkeypatch.setattr(ObjectStore, "put_bytes", broken)
    with pytest.raises(OSError, match="the disk is gone"):
        trainer.write(staged)
    trainer._writer.wait()
