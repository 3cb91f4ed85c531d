"""An optimizer step is whole or nothing, and does what the objective says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from learner_builders import demonstration, reward, sequence, trajectory
from learner_models import VOCABULARY, small_policy

from services.learner.batching import assemble
from services.learner.gradient import NonFiniteStepError, StepAbandonedError
from services.learner.intake.attempts import Terms
from services.learner.intake.groups import JudgedGroup, judge
from services.learner.intake.join import FilledSlot
from services.learner.metrics import StepMetrics
from services.learner.model import PolicyModel, load_policy
from services.learner.objectives.presets import Objective, objective_of, preset
from services.learner.optimizer import learning_rate, make_optimizer, optimizer_tensors
from services.learner.publish import CANARY_LENGTH, CANARY_SEQUENCES, make_canary
from services.learner.replica import Replica
from services.learner.sharded import SavedShards, save_sharded
from services.learner.step import Step
from shared.errors import ConfigError, DependencyError, StorageError
from shared.settings import LearnerSettings, ModelSettings, ObjectiveSettings
from shared.storage import ObjectStore

GRPO, SFT = preset("grpo"), preset("sft")


def terms(objective: Objective) -> Terms:
    return Terms(objective, vocabulary=VOCABULARY, max_tokens=128, version=0, max_lag=1)


def rollouts(policy: PolicyModel, rewards: Sequence[float], objective: Objective = GRPO) -> JudgedGroup:
    """Attempts [4 + i, 6] at one prompt, with the log-probabilities that this policy gives them."""
    slots = {}
    for sample, value in enumerate(rewards):
        ids = [1, 2, 3, 4 + sample, 6]
        logprobs = policy.score(torch.tensor(ids))[3:].tolist()
        made = trajectory(sample=sample, size=len(rewards), sequences=(sequence(ids[:3], ids[3:], logprobs),))
        slots[sample] = FilledSlot(made, reward(made, value), (), "")
    return judge("0-rl-0000000", slots, terms(objective))


def take(policy: PolicyModel, groups: list[JudgedGroup], objective: Objective, **how: object) -> StepMetrics:
    optimizer = make_optimizer(policy, LearnerSettings())
    reference = how.pop("reference", None)
    step = Step(
        policy,
        optimizer,
        micro_batch_tokens=64,
        max_gradient_norm=1.0,
        reference=reference,  # type: ignore[arg-type]
    )
    return step.take(assemble(groups, objective, 64), objective, 1e-2, objective.kl_coefficient)


def weights(policy: PolicyModel) -> dict[str, bytes]:
    return {name: tensor.numpy().tobytes() for name, tensor in policy.named_tensors().items()}


def test_what_is_rewarded_becomes_likely() -> None:
    policy = small_policy()
    probe = torch.tensor([1, 2, 3, 4, 6]), torch.tensor([1, 2, 3, 5, 6])
    before = [float(policy.score(ids)[3]) for ids in probe]
    metrics = take(policy, [rollouts(policy, [1.0, 0.0])], GRPO)
    after = [float(policy.score(ids)[3]) for ids in probe]
    assert after[0] > before[0] and after[1] < before[1]
    assert metrics.tokens == 4 and metrics.gradient_norm > 0 and metrics.clip_fraction == 0
    assert metrics.kl == pytest.approx(0, abs=1e-9)  # on policy
    assert metrics.effective_sample_size == pytest.approx(1)
    assert metrics.logprob_gap_max < 1e-4
    assert 0 < metrics.entropy <= torch.log(torch.tensor(float(VOCABULARY)))


def test_demonstrations_are_learned() -> None:
    policy = small_policy()
    group = judge("0-sft-0000000", {0: FilledSlot(demonstration("0-sft-0000000"), None, (), "")}, terms(SFT))
    losses = [take(policy, [group], SFT).loss for _ in range(10)]
    assert losses[-1] < 0.7 * losses[0]


def test_a_batch_without_signal_changes_nothing_and_is_measured() -> None:
    policy = small_policy()
    before = weights(policy)
    metrics = take(policy, [rollouts(policy, [1.0, 1.0])], GRPO)
    assert weights(policy) == before and metrics.loss == 0 and metrics.learning_rate == 0
    # One of the two attempts: the other would cost as much and say little more.
    assert metrics.silent and metrics.tokens == 2 and metrics.entropy > 0
    assert "gradient_norm" not in metrics.measured(sampled=True, referred=False)


def test_zero_signal_gets_a_kl_gradient_only_when_asked() -> None:
    for wanted in (False, True):
        objective = preset("grpo", kl_coefficient=0.5, kl_on_zero_signal=wanted)
        policy = small_policy()
        reference = small_policy(seed=3)
        before = weights(policy)
        metrics = take(policy, [rollouts(policy, [1.0, 1.0], objective)], objective, reference=reference)
        assert (weights(policy) != before) is wanted
        assert (metrics.kl_loss > 0) is wanted and metrics.kl > 0


def test_a_loss_that_is_not_finite_names_its_trajectory_and_touches_nothing() -> None:
    policy = small_policy()
    judged = rollouts(policy, [1.0, 0.0])
    wrong = sequence([1, 2, 3], [5, 6], [-2000.0, -2000.0])
    made = judged.slots[1].trajectory.model_copy(update={"sequences": (wrong,), "trajectory_id": "guilty"})
    slots = {**judged.slots, 1: FilledSlot(made, judged.slots[1].reward, (), "")}
    before = weights(policy)
    with pytest.raises(NonFiniteStepError, match="guilty") as caught:
        take(policy, [judge("0-rl-0000000", slots, terms(GRPO))], GRPO)
    assert caught.value.trajectories == ("guilty",)
    assert weights(policy) == before
    assert all(p.grad is None for p in policy.model.parameters())


def test_a_gradient_that_is_not_finite_is_refused() -> None:
    policy = small_policy()
    judged = rollouts(policy, [1.0, 0.0])
    with torch.no_grad():
        policy.model.model.norm.weight.fill_(float("inf"))
    before = weights(policy)
    with pytest.raises(NonFiniteStepError):
        take(policy, [judged], GRPO)
    assert weights(policy) == before


def test_a_stop_abandons_the_step_whole() -> None:
    policy = small_policy()
    before = weights(policy)
    optimizer = make_optimizer(policy, LearnerSettings())
    asked = iter([False, True, True])
    step = Step(
        policy, optimizer, micro_batch_tokens=1, max_gradient_norm=1.0, should_stop=lambda: next(asked)
    )
    batch = assemble([rollouts(policy, [1.0, 0.0])], GRPO, 64, pack=False)
    with pytest.raises(StepAbandonedError):
        step.take(batch, GRPO, 1e-2, 0.0)
    assert weights(policy) == before and not optimizer.state


def test_the_optimizer_state_goes_by_name(tmp_path: Path) -> None:
    replica = Replica(small_policy(), LearnerSettings())
    replica.take(assemble([rollouts(replica.policy, [1.0, 0.0])], GRPO, 64), GRPO, 1e-2, 0.0)
    moments = optimizer_tensors(replica.policy, replica.optimizer)
    other = Replica(small_policy(), LearnerSettings())
    other.load_optimizer(written(tmp_path, replica.stage_optimizer(1)))
    again = optimizer_tensors(other.policy, other.optimizer)
    assert again.keys() == moments.keys()
    assert all(torch.equal(tensor, moments[name]) for name, tensor in again.items())
    moments.pop("exp_avg.model.norm.weight")
    with pytest.raises(StorageError, match=r"model\.norm\.weight"):
        other.load_optimizer(written(tmp_path, moments))


def written(place: Path, tensors: dict[str, torch.Tensor]) -> SavedShards:
    store = ObjectStore(f"file://{place}")
    files = save_sharded(store, "any", "optimizer", tensors)
    return SavedShards(store, "any", "optimizer", {name: one.sha256 for name, one in files.items()}, place)


def test_the_rate_warms_up_and_stays() -> None:
    assert [learning_rate(1.0, 3, step) for step in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert learning_rate(1.0, 0, 0) == 1.0


def test_the_canary_follows_from_vocabulary_and_weights() -> None:
    first, again, other = (make_canary(small_policy(seed=seed), 1e-3) for seed in (0, 0, 1))
    assert first.token_ids.tolist() == other.token_ids.tolist()
    assert first.logprobs.tolist() == again.logprobs.tolist() != other.logprobs.tolist()
    assert first.lengths.tolist() == [CANARY_LENGTH] * CANARY_SEQUENCES
    assert first.logprobs.reshape(CANARY_SEQUENCES, -1)[:, 0].tolist() == [0.0] * CANARY_SEQUENCES


@pytest.mark.parametrize("tied", [True, False])
def test_a_model_folder_is_loaded(tied: bool, tmp_path: object) -> None:
    folder = str(tmp_path)
    small_policy(tied=tied).model.save_pretrained(folder)
    policy = load_policy(ModelSettings(path=folder), LearnerSettings(device="cpu"))
    assert policy.packs and policy.vocabulary == VOCABULARY and policy.max_tokens == 128
    assert ("lm_head.weight" in policy.named_tensors()) is not tied
    assert weights(policy) == weights(small_policy(tied=tied))


def test_a_model_that_is_not_there_is_named() -> None:
    with pytest.raises(DependencyError, match=r"'/nowhere'.*temper models prepare"):
        load_policy(ModelSettings(path="/nowhere"), LearnerSettings())
    with pytest.raises(ConfigError, match="'gpu'"):
        from services.learner.model import choose_device

        choose_device("gpu")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"preset": "grop"}, "did you mean 'grpo'"),
        ({"overrides": {"clip_hihg": 0.3}}, "did you mean 'clip_high'"),
        ({"overrides": {"clip_high": -1}}, "clip_high"),
        ({"overrides": {"kl_target": 0.1}}, "kl_target is 0.1 and kl_coefficient 0"),
        ({"overrides": {"correction_low": 3}}, "correction_low is 3: it must be at most correction_high, 2"),
        ({"preset": "sft"}, "does not fit a stage of kind 'rl'"),
    ],
)
def test_a_wrong_objective_is_named(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        objective_of(ObjectiveSettings(**settings), "rl")  # type: ignore[arg-type]


def test_an_sft_stage_imitates_by_default() -> None:
    assert objective_of(ObjectiveSettings(), "sft").kind == "imitation"
    with pytest.raises(ConfigError, match="use 'sft'"):
        objective_of(ObjectiveSettings(preset="dapo"), "sft")
