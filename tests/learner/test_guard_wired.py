"""The guard at work in the step and in the trainer: gradients dropped, checkpoints taken back, runs paused and resumed."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from learner_builders import RUN, reward, sequence, trajectory
from learner_models import small_policy

from services.learner.gradient import NonFiniteStepError
from services.learner.guard.decision import Decision
from services.learner.intake.join import Arrival
from services.learner.intake.offsets import Place
from services.learner.manifest import WEIGHTS
from services.learner.metrics import StepMetrics
from services.learner.saved_tensors import saved_tensors
from services.learner.trainer import Trainer
from shared.contracts import Step
from shared.errors import StorageError
from shared.settings import Settings, parse_settings
from shared.storage import ObjectStore

SIZE = 4


def settings_of(folder: Path, *bounds: dict[str, Any], **changes: Any) -> Settings:
    stage = {"kind": "rl", "steps": 12, "groups_per_step": 2, "group_size": SIZE, "learning_rate": 1e-2}
    document: dict[str, Any] = {
        "run": {"name": RUN, "folder": str(folder / "runs")},
        "storage": {"uri": f"file://{folder / 'objects'}"},
        "model": {"path": str(folder)},
        "domains": [{"name": "sums"}],
        "scheduler": {"max_lag": 50},
        "stages": [{**stage, **changes.pop("stage", {})}],
        "guard": {"bounds": list(bounds), **changes.pop("guard", {})},
        "learner": {"micro_batch_tokens": 64, **changes.pop("learner", {})},
    }
    return parse_settings({**document, **changes})


class Run:
    """A trainer that is fed group by group and keeps what it told."""

    def __init__(self, settings: Settings, seed: int = 0, served: torch.dtype = torch.float32) -> None:
        self.settings = settings
        self.policy = small_policy(seed=seed)
        self.policy.served = served
        self.trainer = Trainer(settings, ObjectStore(settings.storage_uri), self.policy)
        self.versions = {(first := self.trainer.open()).policy.version: first.policy.weights.sha256}
        self.fed = 0
        self.steps: list[Step] = []

    def feed(self, *, shift: float = 0.0, values: list[float] | None = None) -> None:
        """A group whose log-probabilities are the policy's own, moved by `shift`."""
        number, self.fed = self.fed, self.fed + 1
        group = f"0-rl-{number:07d}"
        for sample in range(SIZE):
            ids = [1, 2, 3 + number % 5, 4 + sample, 6]
            logprobs = [min(0.0, x + shift) for x in self.policy.score(torch.tensor(ids))[3:].tolist()]
            made = trajectory(
                group, sample, size=SIZE, version=self.trainer.version, final_answer=str(sample),
                sequences=(sequence(ids[:3], ids[3:], logprobs, version=self.trainer.version),),
            )  # fmt: skip
            value = values[sample] if values else float(sample % 2)
            self.trainer.intake.trajectory(Arrival(made, Place("t", 0, 2 * (SIZE * number + sample))))
            self.trainer.intake.reward(Arrival(reward(made, value), Place("r", 0, SIZE * number + sample)))

    def step(self, **how: Any) -> Step:
        self.feed(**how)
        self.feed(**how)
        return self.take()

    def take(self) -> Step:
        trainer = self.trainer
        trainer.review()
        groups = trainer.next_batch()
        assert groups is not None
        _, self.metrics = trainer.train(groups)
        record, _ = trainer.book(groups, self.metrics, {})
        if trainer.checkpoint_due():
            announced = trainer.write(trainer.take_copies(trainer.seal({})))
            self.versions[announced.policy.version] = announced.policy.weights.sha256
            trainer.prune()
        self.steps.append(record)
        return record

    def decided(self) -> Decision:
        assert self.metrics.decision is not None
        return self.metrics.decision

    def state(self) -> dict[str, bytes]:
        tensors = {
            **self.policy.named_tensors(),
            **saved_tensors(self.policy, self.trainer.replica.optimizer),
        }
        return {name: tensor.numpy().tobytes() for name, tensor in tensors.items()}


GAP = {"metric": "logprob_gap_mean", "limit": 0.5}


def test_a_bound_that_holds_changes_nothing(tmp_path: Path) -> None:
    guarded = Run(settings_of(tmp_path / "a", {**GAP, "action": "skip_batch"}))
    free = Run(settings_of(tmp_path / "b"))
    for _ in range(3):
        record = guarded.step()
        free.step()
        assert record.action == "continue" and record.notes == () and record.learning_rate == 1e-2
    assert guarded.state() == free.state()


def test_a_skipped_batch_is_booked_and_changes_no_weight(tmp_path: Path) -> None:
    run = Run(settings_of(tmp_path, {**GAP, "action": "skip_batch"}))
    run.step()
    before = run.state()
    record = run.step(shift=-2.0)
    assert record.action == "skip_batch" and record.step == 2 and record.learning_rate == 0
    assert {fate for group in record.groups for fate in group.fates} == {"skipped"}
    assert record.slots() == () and record.trained_trajectories == 0
    assert record.tokens == {"skipped": 2 * SIZE * 2}
    assert run.state() == before and run.versions[2] == run.versions[1]
    (note,) = record.notes
    assert "batch skipped: logprob_gap_mean" in note
    named = {name for group in record.groups for name in group.trajectory_ids}
    assert set(run.decided().crossings[0].trajectories) <= named
    assert run.step().action == "continue" and run.state() != before


def test_the_rate_is_lowered_for_this_step(tmp_path: Path) -> None:
    run = Run(settings_of(tmp_path, {**GAP, "action": "lower_rate"}))
    assert [run.step(shift=shift).learning_rate for shift in (0.0, -2.0, 0.0)] == [1e-2, 5e-3, 5e-3]


@pytest.mark.parametrize("served", [torch.float32, torch.bfloat16])
def test_a_roll_back_takes_weights_and_moments_back_and_nothing_else(
    tmp_path: Path, served: torch.dtype
) -> None:
    bound = {"metric": "logprob_gap_max", "limit": 1.0, "action": "roll_back", "patience": 2}
    run = Run(settings_of(tmp_path, bound), served=served)
    run.step()
    good = run.state()
    run.step()  # it measures what the first one made
    assert run.step(shift=-2.0).action == "continue"  # within its patience, and trained
    assert run.state() != good
    record = run.step(shift=-2.0)
    assert record.action == "roll_back" and run.decided().roll_back_to == 1
    assert run.state() == good and run.versions[4] == run.versions[1] != run.versions[2]
    trainer = run.trainer
    assert trainer.progress.step == trainer.progress.stage_step == 4
    assert all(f"0-rl-{number:07d}" in trainer.intake.resolved for number in range(8))
    assert {fate for group in record.groups for fate in group.fates} == {"skipped"}
    assert trainer._watch._state.roll_backs == 1 and trainer._watch._state.good == (0, 4)
    assert run.step().learning_rate == 5e-3  # the same rate would fail again
    assert trainer.intake.take_fates() == ()


def test_a_policy_that_earns_nothing_any_more_is_taken_back(tmp_path: Path) -> None:
    """No group has signal then, and nothing is trained; what it became is seen by its KL all the same."""
    run = Run(settings_of(tmp_path, {"metric": "kl", "limit": 0.5, "action": "roll_back"}))
    run.step()
    good, version = run.state(), run.trainer.version
    run.step()  # It shows that the step before was good; nothing shows that of itself.
    with torch.no_grad():
        for parameter in run.policy.model.parameters():
            parameter.mul_(4.0)
    run.feed(shift=-3.0, values=[0.0] * SIZE)
    run.feed(shift=-3.0, values=[0.0] * SIZE)
    record = run.take()
    assert record.action == "roll_back" and record.kl > 0.5 and record.trained_trajectories == 0
    assert {fate for group in record.groups for fate in group.fates} == {"zero_signal"}
    assert f"checkpoint of step {version}" in record.notes[0] and run.state() == good


def test_good_checkpoints_outlive_pruning(tmp_path: Path) -> None:
    bound = {"metric": "logprob_gap_max", "limit": 1.0, "action": "roll_back", "patience": 5}
    run = Run(settings_of(tmp_path, bound, learner={"keep_checkpoints": 1}))
    run.step()
    for _ in range(4):
        run.step(shift=-2.0)
    keys = ObjectStore(run.settings.storage_uri).list(f"checkpoints/{RUN}/")
    assert [key.split("/")[-2] for key in sorted(keys) if key.endswith(WEIGHTS)] == ["00000000", "00000005"]
    record = run.step(shift=-2.0)
    assert record.action == "roll_back" and run.versions[6] == run.versions[0]
    keys = ObjectStore(run.settings.storage_uri).list(f"checkpoints/{RUN}/")
    assert [key.split("/")[-2] for key in sorted(keys) if key.endswith(WEIGHTS)] == ["00000006"]
    with pytest.raises(StorageError, match="00000005"):
        run.trainer._checkpoints.load(5, tmp_path)


def test_a_roll_back_between_checkpoints_writes_one(tmp_path: Path) -> None:
    bound = {**GAP, "action": "roll_back"}
    run = Run(settings_of(tmp_path, bound, learner={"checkpoint_every": 3}))
    run.step()
    assert sorted(run.versions) == [0]
    run.step(shift=-2.0)
    assert sorted(run.versions) == [0, 2] and run.versions[2] == run.versions[0]


def test_a_guarded_run_resumes_to_the_bit(tmp_path: Path) -> None:
    bounds = (
        {"metric": "logprob_gap_max", "limit": 1.0, "action": "roll_back", "patience": 2},
        {"metric": "reward_jump", "limit": 0.2, "action": "lower_rate"},
    )
    plan = [{}, {}, {"shift": -2.0}, {"shift": -2.0}, {"values": [1.0, 1.0, 1.0, 0.0]}, {"shift": -2.0}, {}]
    whole = Run(settings_of(tmp_path / "whole", *bounds, guard={"window": 2}))
    for how in plan:
        whole.step(**how)
    assert [step.action for step in whole.steps].count("roll_back") == 1
    assert [step.action for step in whole.steps].count("lower_rate") >= 1
    for cut in (2, 3, 4, 5):
        settings = settings_of(tmp_path / str(cut), *bounds, guard={"window": 2})
        first = Run(settings)
        for how in plan[:cut]:
            first.step(**how)
        second = Run(settings, seed=9)
        second.fed = first.fed
        for how in plan[cut:]:
            second.step(**how)
        assert second.state() == whole.state()
        assert [step.action for step in first.steps + second.steps] == [step.action for step in whole.steps]


def test_a_kill_between_a_roll_back_and_its_checkpoint_decides_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound = {"metric": "logprob_gap_max", "limit": 1.0, "action": "roll_back", "patience": 2}
    settings = settings_of(tmp_path, bound)
    first = Run(settings)
    first.step()
    first.step()
    first.step(shift=-2.0)
    with monkeypatch.context() as patch, pytest.raises(KilledError):
        patch.setattr(first.trainer, "write", killed)
        first.step(shift=-2.0)
    assert first.metrics.decision is not None and first.metrics.decision.action == "roll_back"
    second = Run(settings, seed=9)
    second.fed = first.fed - 2
    record = second.step(shift=-2.0)
    assert record.action == "roll_back" and record.step == 4
    assert second.state() == first.state() and second.versions[4] == first.versions[1]


class KilledError(BaseException):
    """The process dies here."""


def killed(*_: Any) -> None:
    raise KilledError


def test_a_pause_survives_a_restart_and_ends_with_a_word_on_its_step(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, {**GAP, "action": "pause"}, learner={"checkpoint_every": 3})
    run = Run(settings)
    before = run.state()
    record = run.step(shift=-2.0)
    assert record.action == "pause" and run.state() == before
    again = Run(settings).trainer
    for trainer in (run.trainer, again):
        assert trainer.pause is not None and trainer.pause.step == 1
        assert "paused: logprob_gap_mean" in trainer.pause.reason
        assert not trainer.resume(0) and trainer.pause is not None
        assert trainer.resume(1) and trainer.pause is None


@pytest.mark.parametrize(("sample", "of_loss"), [(0, True), (1, False)], ids=["loss", "gradient alone"])
def test_what_is_not_finite_is_a_fact_where_a_bound_takes_it(
    tmp_path: Path, sample: int, of_loss: bool
) -> None:
    run = Run(settings_of(tmp_path, {"metric": "not_finite", "action": "skip_batch"}))
    run.step()
    before = run.state()
    run.feed()
    run.feed()
    guilty = f"0-rl-0000003/{sample}/1"
    slot = run.trainer.intake._open["0-rl-0000003"].slots[sample].trajectory
    assert slot.trajectory_id == guilty
    slot.sequences[0].logprobs.setflags(write=True)
    slot.sequences[0].logprobs[3:] = -2000.0
    record = run.take()
    assert record.action == "skip_batch" and run.state() == before
    assert math.isnan(record.gradient_norm) and math.isfinite(record.loss) is not of_loss
    (crossing,) = run.decided().crossings
    assert crossing.metric == "not_finite" and crossing.trajectories[0] == guilty
    assert all(parameter.grad is None for parameter in run.policy.model.parameters())
    again = Step.model_validate_json(record.model_dump_json())
    assert math.isnan(again.gradient_norm)


def broken(run: Run) -> list[Any]:
    """A batch for a policy whose every log-probability is not a number."""
    run.feed()
    run.feed()
    with torch.no_grad():
        run.policy.model.model.norm.weight.fill_(float("nan"))
    groups = run.trainer.next_batch()
    assert groups is not None
    return groups


def test_a_metric_that_is_not_a_number_is_out_of_every_bound_on_it(tmp_path: Path) -> None:
    run = Run(settings_of(tmp_path, {"metric": "entropy", "limit": 0.0, "action": "pause"}))
    _, metrics = run.trainer.train(broken(run))
    assert metrics.dropped and metrics.decision is not None and metrics.decision.action == "pause"


def test_a_loss_that_is_not_finite_is_refused_where_no_bound_drops_it(tmp_path: Path) -> None:
    run = Run(settings_of(tmp_path, {"metric": "not_finite", "action": "roll_back", "patience": 2}))
    groups = broken(run)
    with pytest.raises(NonFiniteStepError) as caught:
        run.trainer.train(groups)
    run.trainer.refuse(groups, caught.value)
    run.feed()
    run.feed()
    assert run.take().action == "roll_back"  # the second in a row
    assert all(bool(torch.isfinite(tensor).all()) for tensor in run.policy.named_tensors().values())


def test_a_new_stage_begins_with_an_empty_guard(tmp_path: Path) -> None:
    stage = {"kind": "rl", "steps": 2, "groups_per_step": 2, "group_size": SIZE, "learning_rate": 1e-2}
    settings = settings_of(tmp_path, {**GAP, "action": "lower_rate"}).model_dump()
    run = Run(parse_settings({**settings, "stages": [stage, stage]}))
    run.step()
    run.step(shift=-2.0)
    state = run.trainer._watch._state
    assert run.trainer.progress.stage_index == 1
    assert (state.rate_factor, state.good, state.streaks) == (1.0, (2,), {})


def test_an_unstable_verifier_is_named_by_its_domain(tmp_path: Path) -> None:
    draw = random.Random(5)
    run = Run(settings_of(tmp_path, stage={"steps": 60}, learner={"checkpoint_every": 20}))
    stable, unstable = 0, 0
    for number in range(60):
        for domain in ("sums", "shaky"):
            group = f"0-rl-{run.fed:07d}"
            run.fed += 1
            for sample in range(SIZE):
                answer = sample % 2
                value = float(answer)
                if domain == "shaky" and draw.random() < 0.2:
                    value = float(draw.random() < 0.5)
                made = trajectory(
                    group, sample, size=SIZE, final_answer=str(answer), version=number,
                    sequences=(sequence([1, 2, 3], [4 + answer, 5], [-3.0, -3.0], version=number),),
                )  # fmt: skip
                made = made.model_copy(update={"domain": made.domain.model_copy(update={"name": domain})})
                place = SIZE * run.fed + sample
                run.trainer.intake.trajectory(Arrival(made, Place("t", 0, place)))
                run.trainer.intake.reward(Arrival(reward(made, value), Place("r", 0, place)))
        record = run.take()
        stable += sum("'sums'" in note for note in record.notes)
        unstable += sum("verifier of domain 'shaky' is unstable" in note for note in record.notes)
    assert (stable, unstable) == (0, 1)
    assert Run(run.settings).trainer._watch._told == {"shaky"}


def test_nothing_measured_is_nothing_told() -> None:
    assert StepMetrics().measured(sampled=True, referred=True) == {}
    told = StepMetrics(tokens=3, entropy=1.0).measured(sampled=False, referred=False)
    assert set(told) == {"entropy", "gradient_norm"}
