"""What is saved changes nothing: layers computed again, padding without masks, a reference asked once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch
from learner_builders import reward, sequence, trajectory
from learner_models import VOCABULARY, small_policy
from transformers import LlamaForCausalLM, MistralConfig, MistralForCausalLM

from services.learner.batching import Batch, assemble
from services.learner.collate import collate
from services.learner.gradient import Gradient
from services.learner.intake.attempts import Terms
from services.learner.intake.groups import judge
from services.learner.intake.join import FilledSlot
from services.learner.model import PolicyModel, load_policy
from services.learner.model_check import check_model
from services.learner.objectives.presets import Objective, preset
from services.learner.optimizer import make_optimizer
from shared.errors import ConfigError
from shared.settings import LearnerSettings, ModelSettings

KL = preset("grpo", kl_coefficient=0.3)


def batch_of(objective: Objective, lengths: tuple[int, ...] = (2, 7, 4, 1), pack: bool = True) -> Batch:
    """One group: attempts of `lengths` tokens at one prompt, every second one right."""
    slots = {}
    for sample, n in enumerate(lengths):
        ids = [(3 * sample + t) % VOCABULARY for t in range(n)]
        made = trajectory(sample=sample, size=len(lengths), sequences=(sequence([1, 2, 3], ids, [-2.0] * n),))
        slots[sample] = FilledSlot(made, reward(made, float(sample % 2)), (), "")
    terms = Terms(objective, vocabulary=VOCABULARY, max_tokens=128, version=0, max_lag=1)
    return assemble([judge("0-rl-0000000", slots, terms)], objective, 1000, pack)


def gradient(
    policy: PolicyModel, batch: Batch, objective: Objective, reference: PolicyModel | None, tokens: int = 1000
) -> torch.Tensor:
    policy.model.zero_grad()
    taken = Gradient(policy, micro_batch_tokens=tokens, reference=reference)
    taken.accumulate(batch, objective, objective.kl_coefficient)
    return torch.cat([p.grad.flatten() for p in policy.model.parameters() if p.grad is not None])


def folder_of(tmp_path: Path) -> str:
    small_policy().model.save_pretrained(tmp_path)
    return str(tmp_path)


@pytest.mark.parametrize("pack", [True, False])
def test_layers_computed_again_give_the_same_gradient(tmp_path: Path, pack: bool) -> None:
    """To the bit, beside a frozen reference that was made from either policy."""
    folder, grads = folder_of(tmp_path), []
    for again in (False, True):
        learner = LearnerSettings(device="cpu", activation_checkpointing=again)
        policy = load_policy(ModelSettings(path=folder), learner)
        assert policy.body.gradient_checkpointing is again
        reference = policy.frozen()
        with torch.no_grad():
            for parameter in policy.model.parameters():
                parameter.add_(0.01)
        grads.append(gradient(policy, batch_of(KL, pack=pack), KL, reference))
        assert all(p.grad is None for p in reference.model.parameters())
    assert torch.equal(*grads) and grads[0].any()


def test_layers_are_computed_again_for_the_policy_and_not_for_the_reference(tmp_path: Path) -> None:
    learner = LearnerSettings(device="cpu", activation_checkpointing=True)
    policy = load_policy(ModelSettings(path=folder_of(tmp_path)), learner)
    reference = policy.frozen()
    calls: Counter[str] = Counter()
    for name, model in (("policy", policy), ("reference", reference)):
        model.body.layers[0].mlp.register_forward_pre_hook(lambda *_, name=name: calls.update([name]))
    gradient(policy, batch_of(KL), KL, reference)
    assert calls == {"policy": 2, "reference": 1}


def test_a_model_that_cannot_compute_its_layers_again_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LlamaForCausalLM, "supports_gradient_checkpointing", False)
    learner = LearnerSettings(device="cpu", activation_checkpointing=True)
    with pytest.raises(ConfigError, match=r"activation_checkpointing.*'llama'.*false"):
        load_policy(ModelSettings(path=folder_of(tmp_path)), learner)


@pytest.mark.parametrize("objective", [KL, preset("rloo", kl_coefficient=0.3, kl_place="reward")])
def test_the_reference_is_asked_once_for_each_micro_batch(objective: Objective) -> None:
    reference, calls = small_policy(seed=3), Counter[str]()
    reference.body.register_forward_pre_hook(lambda *_: calls.update(["reference"]))
    policy, batch = small_policy(), batch_of(objective, pack=False)
    policy.body.register_forward_pre_hook(lambda *_: calls.update(["policy"]))
    gradient(policy, batch, objective, reference, tokens=12)
    # What the sampler said of a token is known: the policy itself is not asked before.
    assert calls["reference"] == calls["policy"] == len(batch.cuts(12)) > 1


def test_rows_of_different_lengths_are_padded_without_a_mask() -> None:
    """A model that saw positions start again in the padding would make a mask of [b, t, t]."""
    policy, masks = small_policy(), []
    policy.body.layers[0].self_attn.register_forward_pre_hook(
        lambda _, args, kwargs: masks.append(kwargs["attention_mask"]), with_kwargs=True
    )
    micro = collate(batch_of(KL, pack=False).rows)
    assert micro.mask is None and len(set(micro.rows.tolist())) == 4
    policy.logprobs(micro)
    assert masks == [None]


def test_a_mask_is_made_once_for_all_layers() -> None:
    """Of a boolean one attention makes a tensor of floats in every layer and keeps it for the backward pass."""
    policy, masks = small_policy(), []
    for layer in policy.body.layers:
        layer.self_attn.register_forward_pre_hook(
            lambda _, args, kwargs: masks.append(kwargs["attention_mask"]), with_kwargs=True
        )
    policy.logprobs(collate(batch_of(KL).rows))
    assert [mask.dtype for mask in masks] == [torch.float32] * 2 and masks[0].data_ptr() == masks[
        1
    ].data_ptr()


def test_bfloat16_packs_too_and_keeps_masters_in_float32(tmp_path: Path) -> None:
    served = ModelSettings(path=folder_of(tmp_path), dtype="bfloat16")
    policy = load_policy(served, LearnerSettings(device="cpu"))
    assert policy.packs
    apart, packed = (gradient(policy, batch_of(KL, pack=pack), KL, policy.frozen()) for pack in (False, True))
    assert packed.dtype is torch.float32
    # Eight bits of mantissa, and other sums: close, not equal.
    assert float((packed - apart).norm()) <= 0.05 * float(apart.norm())


@pytest.mark.parametrize("window", [4, 64])
def test_a_model_with_a_window_is_not_packed(window: int) -> None:
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = MistralConfig(vocab_size=VOCABULARY, num_key_value_heads=1, sliding_window=window, **sizes)
    policy = PolicyModel(MistralForCausalLM(config).train())
    check_model(policy)
    assert not policy.packs


def test_a_head_of_another_kind_gives_the_same_numbers() -> None:
    policy, batch = small_policy(torch.float64), batch_of(KL)
    plain = gradient(policy, batch, KL, small_policy(torch.float64, seed=3))
    # A hook may do anything, so the head is called as it is, in chunks that are computed again.
    policy.head.register_forward_hook(lambda _, args, out: out * 1.0)
    policy.logit_bytes = 4 * VOCABULARY * 5
    hooked = gradient(policy, batch, KL, small_policy(torch.float64, seed=3))
    assert float((hooked - plain).norm()) <= 1e-6 * float(plain.norm())


def test_parameters_without_a_fused_optimizer_get_the_plain_one() -> None:
    policy = small_policy()
    assert make_optimizer(policy, LearnerSettings()).defaults["fused"]
    policy.model.rotations = torch.nn.Parameter(torch.zeros(2, dtype=torch.complex64))
    assert not make_optimizer(policy, LearnerSettings()).defaults["fused"]
