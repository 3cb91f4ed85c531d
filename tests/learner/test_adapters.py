"""Low-rank adapters: exact beside merged weights, alone trained, alone published, whole again where they are served."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from learner_builders import RUN, demonstration, reward, sequence, trajectory
from learner_models import small_policy
from ranks_cases import OBJECTIVES, batch, lora_policy_of

from services.learner.adapters.lora import AdaptedLinear, add_adapters, targets_of
from services.learner.collate import collate
from services.learner.intake.join import Arrival
from services.learner.intake.offsets import Place
from services.learner.model import PolicyModel, load_policy
from services.learner.replica import Replica
from services.learner.trainer import Trainer
from services.rollout.engines.base import check_canary
from services.rollout.engines.decoder import Decoder, load_model
from shared.contracts import Policy
from shared.errors import AttestationError, ConfigError
from shared.settings import LearnerSettings, LoraSettings, Settings, parse_settings
from shared.storage import ObjectStore
from shared.weights.adapter import Base, folder_sha256, info_of

LORA = {"rank": 2, "alpha": 4.0, "targets": ["q_proj", "down_proj"]}
SFT = {"kind": "sft", "steps": 2, "groups_per_step": 1, "learning_rate": 1e-2}
RL = {
    "kind": "rl", "steps": 4, "groups_per_step": 1, "group_size": 2, "learning_rate": 1e-2,
    "objective": {"preset": "grpo", "overrides": {"kl_coefficient": 0.1}},
}  # fmt: skip


def merged(policy: PolicyModel) -> PolicyModel:
    """The plain model with every adapter added to its matrix."""
    plain = small_policy(torch.float64)
    state = plain.model.state_dict()
    for name, layer in policy.model.named_modules():
        if isinstance(layer, AdaptedLinear):
            state[f"{name}.weight"] += 2.0 * layer.lora_b.detach() @ layer.lora_a.detach()
    return plain


def test_an_adapter_that_has_learnt_nothing_changes_nothing() -> None:
    plain, adapted = small_policy(), small_policy()
    before = plain.score(torch.arange(9))
    adapters = add_adapters(adapted.model, LoraSettings(rank=3), "digest", seed=1)
    assert torch.equal(adapted.score(torch.arange(9)), before)
    trained = [p for p in adapted.model.parameters() if p.requires_grad]
    assert sum(p.numel() for p in trained) == sum(t.numel() for t in adapters.named_tensors().values())
    assert len(trained) == 2 * len(targets_of(plain.model, ())) == 2 * 14


def test_gradients_are_those_of_the_merged_matrix() -> None:
    """With W' = W + s·B·A and G = ∂L/∂W': ∂L/∂A = s·Bᵀ·G and ∂L/∂B = s·G·Aᵀ. In float64, to 1e-9 of the norm."""
    policy = lora_policy_of()
    for layer in policy.model.modules():
        if isinstance(layer, AdaptedLinear):
            torch.nn.init.normal_(layer.lora_b, std=0.1)
    plain = merged(policy)
    objective = OBJECTIVES["grpo"]
    from services.learner.gradient import Gradient

    losses = []
    for one in (policy, plain):
        report = Gradient(one, micro_batch_tokens=64).accumulate(batch(objective), objective, 0.0)
        losses.append(report.sums.loss)
    assert losses[0] == pytest.approx(losses[1], rel=1e-9)
    found = 0
    for name, layer in policy.model.named_modules():
        if isinstance(layer, AdaptedLinear):
            whole = plain.model.get_submodule(name).weight.grad
            for got, expected in (
                (layer.lora_a.grad, 2.0 * layer.lora_b.detach().T @ whole),
                (layer.lora_b.grad, 2.0 * whole @ layer.lora_a.detach().T),
            ):
                assert got is not None and float((got - expected).norm()) <= 1e-9 * float(expected.norm())
            assert layer.base.weight.grad is None
            found += 1
    assert found == 4


def test_the_reference_is_the_policy_of_then_without_a_second_model() -> None:
    policy = lora_policy_of()
    objective = OBJECTIVES["kl in the loss"]
    replica = Replica(policy, LearnerSettings(micro_batch_tokens=64))
    micro = collate(batch(objective).cuts(64)[0])
    replica.take(batch(objective), OBJECTIVES["grpo"], 1e-2, 0.0)
    then = policy.logprobs(micro)
    replica.freeze_reference()
    replica.take(batch(objective), objective, 1e-2, 0.1)
    assert replica.reference is not None and not isinstance(replica.reference, PolicyModel)
    assert torch.equal(replica.reference.logprobs(micro), then)
    assert not torch.equal(policy.logprobs(micro), then)


def test_a_target_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match=r"no linear layer 'q_prj'.*q_proj"):
        add_adapters(small_policy().model, LoraSettings(rank=1, targets=("q_prj",)), "", 0)


def settings_of(folder: Path, *stages: dict[str, Any], lora: dict[str, Any] | None = None) -> Settings:
    if not (folder / "model").exists():
        small_policy().model.save_pretrained(str(folder / "model"))
    return parse_settings(
        {
            "run": {"name": RUN, "folder": str(folder / "runs")},
            "storage": {"uri": f"file://{folder / 'objects'}"},
            "model": {"path": str(folder / "model")},
            "domains": [{"name": "sums"}],
            "scheduler": {"max_lag": 50},
            "learner": {"micro_batch_tokens": 64, "device": "cpu", "lora": lora or LORA},
            "stages": list(stages),
        }
    )


class Run:
    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.store = ObjectStore(settings.storage_uri)
        self.policy = load_policy(settings.model, settings.learner, settings.run.seed)
        self.trainer = Trainer(settings, self.store, self.policy)
        self.told: Policy = self.trainer.open().policy
        self.offset = 0

    def feed(self, index: int) -> None:
        """The next step's group: a demonstration in the first stage, two attempts in the second."""
        if self.trainer.progress.stage_index == 0:
            attempts: list[tuple[Any, float | None]] = [(demonstration(f"0-sft-{index:07d}"), None)]
        else:
            name = f"1-rl-{index:07d}"
            attempts = [
                (
                    trajectory(
                        name,
                        sample,
                        stage_index=1,
                        version=self.trainer.version,
                        sequences=(
                            sequence([1, 2, 3], [4 + sample, index + 5], version=self.trainer.version),
                        ),
                    ),
                    float(sample),
                )
                for sample in range(2)
            ]
        for made, value in attempts:
            self.trainer.intake.trajectory(Arrival(made, Place("t", 0, self.offset)))
            if value is not None:
                self.trainer.intake.reward(Arrival(reward(made, value), Place("r", 0, self.offset)))
            self.offset += 1

    def step(self, index: int) -> float:
        self.feed(index)
        trainer = self.trainer
        trainer.review()
        groups = trainer.next_batch()
        assert groups is not None
        _, metrics = trainer.train(groups)
        trainer.book(groups, metrics, {})
        self.told = trainer.write(trainer.take_copies(trainer.seal({}))).policy
        return metrics.loss

    def file(self, folder: Path) -> Path:
        return self.store.fetch(self.told.weights.uri, self.told.weights.sha256, folder)


def test_a_run_of_adapters_publishes_them_alone_and_resumes_to_the_bit(tmp_path: Path) -> None:
    whole, cut = (settings_of(tmp_path / name, SFT, RL) for name in ("whole", "cut"))
    straight, again = Run(whole), Run(cut)
    for index in range(5):
        loss = straight.step(index)
        assert again.step(index) == loss
        if index in {0, 2}:  # also where the second stage has a reference with adapters that are not 0
            again = Run(cut)
            again.offset = straight.offset
    weights = {name: tensor.tolist() for name, tensor in straight.policy.named_tensors().items()}
    assert {name: tensor.tolist() for name, tensor in again.policy.named_tensors().items()} == weights
    assert straight.told.weights.kind == "adapter"
    size = sum(tensor.numel() * 4 for tensor in straight.policy.named_tensors().values())
    assert size <= straight.told.weights.size_bytes < size + 4096

    # Rollout lays them on its own copy of the model, and reproduces the canary.
    base = Base(tmp_path / "whole" / "model", "float32")
    served = base.whole(straight.file(tmp_path), tmp_path / "whole.safetensors")
    decoder = Decoder(load_model(str(tmp_path / "whole" / "model"), "float32", "cpu"), 4)
    canary = straight.told.canary
    decoder.load(served)
    check_canary(canary, decoder.score(canary.token_ids, canary.lengths), straight.told.version)
    first = straight.store.uri_of(f"checkpoints/{RUN}/00000004/weights.safetensors")
    decoder.load(base.whole(Path(first.removeprefix("file://")), tmp_path / "earlier.safetensors"))
    assert abs(decoder.score(canary.token_ids, canary.lengths) - canary.logprobs).max() > canary.tolerance


def test_an_adapter_is_laid_on_its_own_base_alone(tmp_path: Path) -> None:
    run = Run(settings_of(tmp_path, SFT, RL))
    run.step(0)
    weights = run.file(tmp_path)
    info = info_of(weights)
    assert info is not None and info.base_sha256 == folder_sha256(tmp_path / "model") and info.scale == 2.0
    small_policy(seed=5).model.save_pretrained(str(tmp_path / "other"))
    with pytest.raises(AttestationError, match="the model that the learner has"):
        Base(tmp_path / "other", "float32").whole(weights, tmp_path / "never")
    plain = tmp_path / "model" / "model.safetensors"
    assert Base(tmp_path / "model", "float32").whole(plain, tmp_path / "never") == plain
    assert not (tmp_path / "never").exists()


def test_what_does_not_fit_the_adapters_is_refused(tmp_path: Path) -> None:
    run = Run(settings_of(tmp_path, SFT, RL))
    run.step(0)
    with pytest.raises(ConfigError, match="another model"):
        Run(settings_of(tmp_path, SFT, RL, lora={**LORA, "alpha": 8.0}))
    small_policy(seed=5).model.save_pretrained(str(tmp_path / "other"))
    with pytest.raises(ConfigError, match=r"set model\.path to that folder"):
        Run(settings_of(tmp_path / "second", {**SFT, "start_from": str(tmp_path / "other")}, RL))
    place = str(tmp_path / "objects" / "checkpoints" / RUN / "00000001")
    taken = Run(settings_of(tmp_path / "third", {**SFT, "start_from": place}, RL))
    for name, tensor in taken.policy.named_tensors().items():
        assert torch.equal(tensor, run.policy.named_tensors()[name])
    with pytest.raises(ConfigError, match="alpha 4.*alpha 8"):
        Run(settings_of(tmp_path / "fourth", {**SFT, "start_from": place}, RL, lora={**LORA, "alpha": 8.0}))
