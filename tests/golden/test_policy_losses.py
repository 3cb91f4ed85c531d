"""Our objectives give the values that independent public libraries give on one fixed batch.

Float64 values to 1e-9; those that were computed in float32 (`trl.*`) to 1e-5. Every key of the file is read.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from services.learner.objectives.advantages import group_advantages
from services.learner.objectives.aggregation import Denominators, token_weight
from services.learner.objectives.correction import correction_weights
from services.learner.objectives.kl import adapted_coefficient, kl_estimate
from services.learner.objectives.logprobs import entropy_from_logits, selective_log_softmax, token_statistics
from services.learner.objectives.policy import Tokens, policy_loss
from services.learner.objectives.preference import dpo_loss
from services.learner.objectives.presets import Objective, preset
from services.learner.objectives.shaping import overlong_penalty

GOLDEN: dict[str, Any] = json.loads((Path(__file__).parent / "policy_losses.json").read_text())
INPUTS = GOLDEN["inputs"]
MASK = torch.tensor(INPUTS["mask"], dtype=torch.bool)
ROWS = torch.arange(4).unsqueeze(1).expand(4, 4)[MASK]
LENGTHS = MASK.sum(1).tolist()

LIBRARY = {"clip_low": 0.2, "clip_high": 0.28}
DAPO = preset("dapo")
GRPO = preset("grpo", clip_high=0.28)
GSPO = preset("gspo", **LIBRARY)
CISPO = preset("cispo")
TIS = preset("dapo", old_logprobs="recompute", correction="truncated", correction_high=2.0)
DECOUPLED = preset("decoupled_ppo", **LIBRARY)


def golden(name: str) -> Any:
    return GOLDEN[name]


def flat(name: str) -> torch.Tensor:
    return torch.tensor(INPUTS[name], dtype=torch.float64)[MASK]


def advantages(kind: str) -> list[float]:
    rewards, groups = np.array(INPUTS["rewards"]), np.array(INPUTS["groups"])
    out = np.zeros(4)
    for group in set(groups.tolist()):
        out[groups == group] = group_advantages(rewards[groups == group].tolist(), kind)  # type: ignore[arg-type]
    return out.tolist()


def tokens(
    objective: Objective,
    *,
    new: torch.Tensor,
    length: int = 4,
    reference: bool = False,
    old: str = "old",
    sampler: str = "sampler",
) -> Tokens:
    batch = Denominators(tokens=int(MASK.sum()), attempts=4, length=length)
    per_row = torch.tensor(
        [token_weight(objective.aggregation, n, batch) for n in LENGTHS], dtype=torch.float64
    )
    advantage = torch.tensor(advantages(objective.advantage), dtype=torch.float64)
    return Tokens(
        new=new[MASK],
        sampler=flat(sampler),
        old=flat(old),
        advantage=advantage[ROWS],
        weight=per_row[ROWS],
        rows=ROWS,
        count=4,
        reference=flat("ref") if reference else None,
    )


def evaluate(objective: Objective, **how: Any) -> tuple[float, float, float]:
    """(loss, gradient norm over log-probabilities, clip fraction)."""
    new = torch.tensor(INPUTS["new"], dtype=torch.float64, requires_grad=True)
    terms = policy_loss(tokens(objective, new=new, reference=objective.kl_coefficient > 0, **how), objective)
    loss = terms.total(objective.kl_coefficient)
    (gradient,) = torch.autograd.grad(loss, new)
    assert not gradient[~MASK].any()
    return loss.item(), gradient.norm().item(), terms.clipped.double().mean().item()


def with_(objective: Objective, **changes: Any) -> Objective:
    return objective.model_copy(update=changes)


CASES: list[tuple[str, Objective, dict[str, Any]]] = [
    ("verl.vanilla.token-mean", DAPO, {}),
    ("verl.vanilla.seq-mean-token-mean", GRPO, {}),
    ("verl.vanilla.seq-mean-token-sum", with_(GRPO, aggregation="sequence_sum"), {}),
    ("verl.vanilla.seq-mean-token-sum-norm", with_(GRPO, aggregation="sequence_sum_constant"), {}),
    ("verl.gspo", GSPO, {}),
    ("verl.cispo.token-mean", CISPO, {}),
    ("verl.vanilla.token-mean+TIS", TIS, {}),
    ("trl.grpo", GRPO, {}),
    ("trl.bnpo", DAPO, {}),
    ("trl.dr_grpo", with_(GRPO, aggregation="sequence_sum_constant"), {"length": 8}),
    ("trl.dapo", DAPO, {}),
    # This library reads its upper bound as the weight's own cap: 0.28, where the paper's is 1.28.
    ("trl.cispo", with_(CISPO, clip_low=1.0, clip_high=-0.72), {}),
    ("trl.gspo(grpo,seq)", GSPO, {}),
    ("trl.dapo+TIS2", TIS, {}),
    ("trl.grpo+k3beta0.1", with_(GRPO, kl_coefficient=0.1), {}),
    ("prime-rl.default/token-mean", preset("probability_gap"), {"old": "sampler"}),
    ("areal.decoupled(clip.2/.28, behave cap 5)", DECOUPLED, {}),
    ("areal.no-behave", with_(DECOUPLED, correction="none"), {}),
    ("openrlhf.PolicyLoss token_level=True", DAPO, {}),
    ("openrlhf.PolicyLoss token_level=False", GRPO, {}),
    ("openrlhf.PolicyLoss gspo", GSPO, {}),
]


@pytest.mark.parametrize(("name", "objective", "how"), CASES, ids=[case[0] for case in CASES])
def test_loss_and_gradient(name: str, objective: Objective, how: dict[str, Any]) -> None:
    expected = golden(name)
    if not isinstance(expected, dict):
        expected = {"loss": expected}
    tolerance = 1e-5 if name.startswith("trl.") else 1e-9
    loss, gradient, cut = evaluate(objective, **how)
    assert loss == pytest.approx(expected["loss"], abs=tolerance)
    if "gradnorm" in expected:
        assert gradient == pytest.approx(expected["gradnorm"], abs=tolerance)
    if "clipfrac" in expected:
        # The library adds 1e-8 to the count of tokens.
        assert cut == pytest.approx(expected["clipfrac"], abs=1e-9)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("grpo", "group_zscore"), ("dr_grpo", "group_centered"), ("rloo", "leave_one_out")],
)
def test_advantages(name: str, kind: str) -> None:
    assert advantages(kind) == pytest.approx(golden("verl.adv")[name], abs=1e-9)


def test_an_equal_group_is_exactly_zero() -> None:
    assert group_advantages([0.35] * 2, "group_zscore").tolist() == golden("verl.adv.zero_std")
    trap = golden("verl.adv.const_0.35_fp32")
    rewards = np.full(len(trap), 0.35, dtype=np.float32)
    for kind in ("group_zscore", "group_centered", "leave_one_out"):
        assert group_advantages(rewards.tolist(), kind).tolist() == [0.0] * len(trap)  # type: ignore[arg-type]
    # The trap is real: the same formula in float32 gives what the file says.
    single = torch.tensor([0.35] * len(trap), dtype=torch.float32)
    naive = (single - single.mean()) / (single.std() + 1e-6)
    assert naive.abs().max() > 0.01
    assert naive.abs().tolist() == pytest.approx([abs(value) for value in trap], abs=1e-6)


def test_a_group_of_one_has_no_advantage() -> None:
    (trap,) = golden("verl.adv.group_of_one")
    assert trap == pytest.approx(
        1 / (1 + 1e-6), abs=1e-9
    )  # what dividing its own reward by "no deviation" gives
    for kind in ("group_zscore", "group_centered", "leave_one_out"):
        assert group_advantages([1.0], kind).tolist() == [0.0]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "kind"),
    [("k1", "k1"), ("k2", "k2"), ("k3", "k3"), ("abs", "absolute"), ("k3+", "k3_k2_gradient")],
)
def test_kl_estimators(name: str, kind: str) -> None:
    expected = golden("verl.kl." + name)
    new = torch.tensor(INPUTS["new"], dtype=torch.float64, requires_grad=True)
    mean = kl_estimate(new[MASK], flat("ref"), kind).mean()  # type: ignore[arg-type]
    (gradient,) = torch.autograd.grad(mean, new)
    assert mean.item() == pytest.approx(expected["token_mean"], abs=1e-9)
    assert gradient.sum().item() == pytest.approx(expected["gradsum"], abs=1e-9)


def test_adaptive_kl() -> None:
    value = adapted_coefficient(0.1, kl=9.0, target=6.0, samples=256, horizon=10_000)
    assert value == pytest.approx(golden("verl.adaptive_kl(0.1,target6,h10000; cur9,n256)"), abs=1e-9)


def test_truncated_importance_sampling() -> None:
    weights = correction_weights(flat("old"), flat("sampler"), ROWS, 4, kind="truncated", low=0.0, high=2.0)
    expected = torch.tensor(golden("verl.tis.token.thr2"), dtype=torch.float64)
    assert not expected[~MASK].any()
    assert weights.tolist() == pytest.approx(expected[MASK].tolist(), abs=1e-9)
    sequence = correction_weights(
        flat("old"), flat("sampler"), ROWS, 4, kind="truncated_sequence", low=0.0, high=2.0
    )
    per_row = [sequence[row == ROWS][0].item() for row in range(4)]
    assert per_row == pytest.approx(golden("verl.tis.seq.thr2"), abs=1e-9)


def test_masked_importance_sampling_keeps_the_denominator() -> None:
    plain = correction_weights(flat("old"), flat("sampler"), ROWS, 4, kind="truncated", low=0.0, high=1e9)
    masked = correction_weights(flat("old"), flat("sampler"), ROWS, 4, kind="masked", low=0.5, high=2.0)
    inside = (plain >= 0.5) & (plain <= 2.0)
    assert 0 < int((~inside).sum()) < inside.numel()
    assert masked.tolist() == (plain * inside).tolist()
    geometric = correction_weights(
        flat("old"), flat("sampler"), ROWS, 4, kind="masked_sequence", low=0.9, high=1.2
    )
    for row in range(4):
        here = row == ROWS
        mean = torch.exp((flat("old") - flat("sampler"))[here].mean()).item()
        expected = plain[here].tolist() if 0.9 <= mean <= 1.2 else [0.0] * int(here.sum())
        assert geometric[here].tolist() == pytest.approx(expected, abs=1e-12)


def test_overlong_shaping() -> None:
    expected = golden("trl.soft_overlong(max100,cache20) len 79,80,81,90,100,101")
    lengths = (79, 80, 81, 90, 100, 101)
    assert [overlong_penalty(n, limit=100, cache=20) for n in lengths] == pytest.approx(expected, abs=1e-9)
    assert overlong_penalty(1000, limit=100, cache=0) == 0.0


def test_log_softmax_and_entropy() -> None:
    """The file holds results only; these logits over three ids are the ones that give them."""
    expected = torch.tensor(golden("trl.selective_log_softmax"), dtype=torch.float64)
    assert expected.shape == (1, 2)
    entropies = golden("trl.entropy_from_logits")
    logits = golden_logits()
    picked = selective_log_softmax(logits, torch.tensor([[0, 2]]))
    assert picked.tolist()[0] == pytest.approx(expected.tolist()[0], abs=1e-5)
    assert entropy_from_logits(logits).tolist()[0] == pytest.approx(entropies[0], abs=1e-5)
    logprobs, entropy = token_statistics(logits[0], torch.tensor([0, 2]), lambda states: states)
    assert logprobs.tolist() == pytest.approx(expected.tolist()[0], abs=1e-5)
    assert entropy.tolist() == pytest.approx(entropies[0], abs=1e-5)


def golden_logits() -> torch.Tensor:
    return torch.tensor([[[2.0, 1.0, 0.0], [0.0, 5.0, 0.0]]], dtype=torch.float64)


def test_dpo() -> None:
    def tensor(*values: float) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float64)

    loss = dpo_loss(tensor(-10, -12), tensor(-11, -11.5), tensor(-10.5, -12.2), tensor(-10.8, -11.9), 0.1)
    name = (
        "openrlhf.DPOLoss(beta.1) pol_ch[-10,-12] pol_rej[-11,-11.5] ref_ch[-10.5,-12.2] ref_rej[-10.8,-11.9]"
    )
    assert loss.mean().item() == pytest.approx(golden(name), abs=1e-9)
    assert loss.mean().item() == pytest.approx(golden("dpo closed form"), abs=1e-9)


def test_every_value_of_the_file_is_checked() -> None:
    source = Path(__file__).read_text()
    unread = {
        name
        for name in GOLDEN
        if f'"{name}"' not in source and not name.startswith("verl.kl.") and "version" not in name
    }
    assert not unread
