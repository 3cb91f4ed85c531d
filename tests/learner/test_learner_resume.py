"""A learner that is killed anywhere and opened again ends with the same bytes and the same book."""

from __future__ import annotations

import errno
import os
import random
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from learner_builders import RUN, demonstration, reward, sequence, trajectory
from learner_models import VOCABULARY, small_policy

from services.learner.distributed.ranks import Ranks
from services.learner.gradient import StepAbandonedError
from services.learner.intake.join import Arrival
from services.learner.intake.offsets import Place, Shard
from services.learner.manifest import MANIFEST, OPTIMIZER, STATE, WEIGHTS
from services.learner.model import PolicyModel
from services.learner.saved_tensors import saved_tensors
from services.learner.trainer import Announcement, Trainer
from shared.contracts import Reward, Step, Trajectory
from shared.errors import ConfigError, DigestMismatchError, StorageError
from shared.settings import Settings, parse_settings
from shared.storage import ObjectRef, ObjectStore

Record = tuple[Place, Trajectory | Reward]
MOMENTS, MOMENTS_INDEX = f"{OPTIMIZER}-00000-of-00001.safetensors", f"{OPTIMIZER}.index.json"
FILES = (WEIGHTS, MOMENTS, MOMENTS_INDEX, STATE, MANIFEST)
KL = {"preset": "grpo", "overrides": {"kl_coefficient": 0.1, "kl_target": 0.01, "kl_horizon": 100}}


class KilledError(BaseException):
    """The process dies here."""


class MortalStore(ObjectStore):
    """Kills the process when it touches `deadly`; a dead process cleans nothing up."""

    deadly = ""
    dead = False

    def _touch(self, key: str) -> None:
        if self.deadly and key.endswith(self.deadly):
            self.dead = True
            raise KilledError(key)

    def local_path(self, key: str) -> Path | None:
        self._touch(key)
        return super().local_path(key)

    def put_bytes(self, key: str, data: bytes) -> ObjectRef:
        self._touch(key)
        return super().put_bytes(key, data)

    def delete(self, key_or_prefix: str) -> None:
        if not self.dead:
            super().delete(key_or_prefix)


def run_settings(folder: Path, **changes: Any) -> Settings:
    document: dict[str, Any] = {
        "run": {"name": RUN, "folder": str(folder / "runs")},
        "storage": {"uri": f"file://{folder / 'objects'}"},
        "model": {"path": str(folder / "model")},
        "domains": [{"name": "sums"}],
        "scheduler": {"max_lag": 50},
        "learner": {"micro_batch_tokens": 16, "checkpoint_every": 1},
        "stages": [
            {"kind": "sft", "steps": 2, "groups_per_step": 3, "learning_rate": 1e-2},
            {
                "kind": "rl",
                "steps": 3,
                "groups_per_step": 2,
                "group_size": 2,
                "learning_rate": 1e-2,
                "warmup_steps": 2,
                "objective": KL,
            },
        ],
    }
    return parse_settings({**document, **changes})


def log_of(seed: int = 0) -> list[Record]:
    """Demonstrations and rollouts enough for both stages, in the order in which they were appended."""
    draw = random.Random(seed)
    messages: list[tuple[str, Trajectory | Reward]] = []
    for index in range(9):
        messages.append(("trajectories", demonstration(f"0-sft-{index:07d}")))
    rollouts: list[tuple[str, Trajectory | Reward]] = []
    for index in range(9):
        group = f"1-rl-{index:07d}"
        for sample in range(2):
            completion = [draw.randrange(VOCABULARY) for _ in range(draw.randint(4, 6))]
            made = trajectory(
                group,
                sample,
                stage_index=1,
                sequences=(sequence([3, 1, 4], completion, [-3.0] * len(completion)),),
            )
            rollouts += [("trajectories", made), ("rewards", reward(made, float(sample) if index else 1.0))]
    draw.shuffle(rollouts)
    ends: Counter[Shard] = Counter()
    records = []
    for topic, message in messages + rollouts:
        shard = (topic, draw.randrange(2))
        records.append((Place(*shard, ends[shard]), message))
        ends[shard] += 1
    return records


@dataclass
class Life:
    """One process: opens, reads and steps until it is killed or has nothing left to do."""

    settings: Settings
    records: list[Record]
    kill: str = ""
    at_step: int = 0
    served: torch.dtype = torch.float32
    ranks: Ranks | None = None
    told: list[Announcement] = field(default_factory=list)
    positions: dict[Shard, int] = field(default_factory=dict)

    def live(self, seed: int = 0) -> Trainer:
        self.store = MortalStore(self.settings.storage_uri)
        self.micro_batches = 0
        self.trainer = Trainer(self.settings, self.store, self._policy(seed), self._asked_to_stop, self.ranks)
        self.told.append(self.trainer.open())
        self._die("before intake")
        start, waiting = self.trainer.gate.start(), []
        for place, message in self.records:
            if place.offset < start.get(place.shard, 0):
                continue
            admission = self.trainer.gate.admit(place)
            if admission == "new":
                waiting.append((place, message))
            elif admission == "replayed":
                self._feed(place, message)
            if self.trainer.gate.open:
                for record in waiting:
                    self._feed(*record)
                    self._step()
                waiting.clear()
        return self.trainer

    def _policy(self, seed: int) -> PolicyModel:
        policy = small_policy(seed=seed)
        policy.served = self.served
        return policy

    def _feed(self, place: Place, message: Trajectory | Reward) -> None:
        if isinstance(message, Trajectory):
            self.trainer.intake.trajectory(Arrival(message, place))
        else:
            self.trainer.intake.reward(Arrival(message, place))
        self.positions[place.shard] = max(self.positions.get(place.shard, 0), place.offset + 1)

    def _step(self) -> None:
        while self._one_step():
            pass

    def _one_step(self) -> bool:
        """False where there is nothing to take one from."""
        trainer = self.trainer
        if trainer.finished:
            return False
        trainer.review()
        groups = trainer.next_batch()
        if groups is None:
            return False
        self.micro_batches = 0
        try:
            _, metrics = trainer.train(groups)
        except StepAbandonedError as error:
            raise KilledError("mid-backward") from error
        trainer.book(groups, metrics, {})
        self._die("after the step")
        if trainer.checkpoint_due():
            if trainer.progress.step == self.at_step and self.kill in FILES:
                self.store.deadly = f"/{self.kill}"
            self._checkpoint()
        return True

    def _checkpoint(self) -> None:
        announcement = self.trainer.write(self.trainer.take_copies(self.trainer.seal(self.positions)))
        self._die("before publishing")
        self.told.append(announcement)
        self.trainer.prune()

    def _die(self, point: str) -> None:
        if self.kill == point and self.trainer.progress.step >= self.at_step:
            raise KilledError(point)

    def _asked_to_stop(self) -> bool:
        self.micro_batches += 1
        here = self.kill == "mid-backward" and self.trainer.progress.step + 1 == self.at_step
        return here and self.micro_batches > 1


def bytes_of(trainer: Trainer) -> dict[str, bytes]:
    policy, optimizer = trainer.replica.policy, trainer.replica.optimizer
    tensors = {**policy.named_tensors(), **saved_tensors(policy, optimizer)}
    return {name: tensor.numpy().tobytes() for name, tensor in tensors.items()}


def book(lives: list[Life]) -> dict[int, Step]:
    """Every step that was told; one that is told again must say the same."""
    steps: dict[int, Step] = {}
    for life in lives:
        for announcement in life.told:
            for step in announcement.steps:
                assert steps.setdefault(step.step, step) == step
    return {n: s.model_copy(update={"lineage": "", "created_ms": 0, "seconds": {}}) for n, s in steps.items()}


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, bytes], dict[int, Step]]:
    life = Life(run_settings(tmp_path_factory.mktemp("quiet")), log_of())
    trainer = life.live()
    assert trainer.finished and trainer.progress.step == 5
    return bytes_of(trainer), book([life])


POINTS = [
    ("before intake", 0),
    ("mid-backward", 2),
    ("mid-backward", 4),
    ("after the step", 3),
    (WEIGHTS, 3),
    (MOMENTS, 2),
    (MOMENTS_INDEX, 3),
    (STATE, 4),
    (MANIFEST, 3),
    (MANIFEST, 2),
    ("before publishing", 1),
    ("before publishing", 2),
    ("before publishing", 4),
]


@pytest.mark.parametrize(("point", "step"), POINTS)
def test_a_kill_changes_nothing(
    point: str, step: int, tmp_path: Path, quiet: tuple[dict[str, bytes], dict[int, Step]]
) -> None:
    settings = run_settings(tmp_path)
    first = Life(settings, log_of(), kill=point, at_step=step)
    with pytest.raises(KilledError):
        first.live()
    # Another seed: every byte has to come from the checkpoint (or, without one, the model's folder).
    second = Life(settings, log_of())
    trainer = second.live(seed=0 if point == "before intake" else 7)
    assert second.told[0].policy.version == (first.told[-1].policy.version + (point == "before publishing"))
    assert bytes_of(trainer) == quiet[0]
    told = book([first, second])
    assert told == quiet[1]
    slots = Counter((g.group_id, i) for s in told.values() for g in s.groups for i in g.samples)
    assert set(slots.values()) == {1}
    versions = [a.policy.version for life in (first, second) for a in life.told]
    assert sorted(set(versions)) == list(range(6))


def test_the_book_is_complete(quiet: tuple[dict[str, bytes], dict[int, Step]]) -> None:
    steps = quiet[1]
    assert [steps[n].stage for n in range(1, 6)] == ["sft", "sft", "rl", "rl", "rl"]
    assert all(s.trained_trajectories == len(s.slots()) for s in steps.values())
    groups = [group for step in steps.values() for group in step.groups]
    left_over = [group.group_id for group in groups if group.fates == ("expired",)]
    assert len(left_over) == 3 and all(name.startswith("0-sft") for name in left_over)
    assert steps[3].kl == pytest.approx(0.0, abs=1e-6)  # the reference is where the stage began
    assert steps[5].kl > 0
    assert steps[5].loss_terms["kl_coefficient"] != 0.1


def test_only_announced_weights_are_kept(tmp_path: Path) -> None:
    settings = run_settings(tmp_path)
    Life(settings, log_of()).live()
    keys = ObjectStore(settings.storage_uri).list(f"checkpoints/{RUN}/")
    kept = [key for key in keys if key.endswith((WEIGHTS, MOMENTS_INDEX))]
    assert len(kept) == 2 * settings.learner.keep_checkpoints
    assert all("/00000004/" in key or "/00000005/" in key for key in kept)
    assert sum(key.endswith(MANIFEST) for key in keys) == 6


def test_several_steps_to_a_checkpoint(tmp_path: Path) -> None:
    learner = {"micro_batch_tokens": 16, "checkpoint_every": 2}
    settings = run_settings(tmp_path, learner=learner)
    first = Life(settings, log_of(), kill="after the step", at_step=3)
    with pytest.raises(KilledError):
        first.live()
    second = Life(settings, log_of())
    second.live(seed=3)
    assert [a.policy.version for a in first.told + second.told] == [0, 2, 2, 4, 5]
    assert [[s.step for s in a.steps] for a in second.told] == [[1, 2], [3, 4], [5]]


def test_bfloat16_is_served_and_float32_is_kept(tmp_path: Path) -> None:
    settings = run_settings(tmp_path)

    first = Life(settings, log_of(), kill="before publishing", at_step=3, served=torch.bfloat16)
    with pytest.raises(KilledError):
        first.live()
    left = bytes_of(first.trainer)
    second = Life(settings, [], served=torch.bfloat16)
    assert bytes_of(second.live(seed=5)) == left
    assert {tensor.dtype for tensor in second.told[0].policy.weights.tensors} == {"BF16"}


def test_damage_is_refused_by_name(tmp_path: Path) -> None:
    settings = run_settings(tmp_path)
    Life(settings, log_of()).live()
    weights = tmp_path / "objects" / "checkpoints" / RUN / "00000005" / WEIGHTS
    raw = bytearray(weights.read_bytes())
    raw[-1] ^= 1
    weights.write_bytes(raw)
    with pytest.raises(DigestMismatchError, match="00000005"):
        Life(settings, log_of()).live()


def test_another_configuration_is_refused(tmp_path: Path) -> None:
    settings = run_settings(tmp_path)
    Life(settings, log_of()).live()
    other = run_settings(tmp_path, domains=[{"name": "products"}])
    with pytest.raises(ConfigError, match="another domains"):
        Life(other, log_of()).live()
    stages = [*settings.model_dump()["stages"], {"kind": "sft", "steps": 1}]
    longer = Life(run_settings(tmp_path, stages=stages), [])
    assert not longer.live().finished


def test_a_full_disk_leaves_the_checkpoint_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = run_settings(tmp_path)
    life = Life(settings, log_of()[:4])
    trainer = life.live()
    assert trainer.progress.step == 1
    snapshot = trainer.seal(life.positions)
    following = replace(snapshot, progress=snapshot.progress.advanced())

    def full(descriptor: int, data: memoryview) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(StorageError, match="disk is full.*bytes wanted"):
        trainer.write(trainer.take_copies(following))
    monkeypatch.undo()
    folder = tmp_path / "objects" / "checkpoints" / RUN
    assert sorted(p.name for p in folder.iterdir()) == ["00000000", "00000001"]
    assert Life(settings, []).live().progress.step == 1


def test_checkpoints_as_often_as_policies_are_needed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="checkpoint_every is 3"):
        Trainer(
            run_settings(tmp_path, learner={"checkpoint_every": 3}, scheduler={"max_lag": 1}),
            ObjectStore(f"file://{tmp_path}"),
            small_policy(),
        )
