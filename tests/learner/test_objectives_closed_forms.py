"""Every part of an objective against its paper's formula, written out in plain arithmetic: value and gradient.

Where the golden file has no value. No autograd on the expected side: the derivatives are those of the formulas.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from services.learner.objectives.advantages import group_advantages, has_signal, whiten
from services.learner.objectives.aggregation import Denominators, token_weight
from services.learner.objectives.clipping import clipped, probability_gap, weighted_likelihood
from services.learner.objectives.correction import correction_weights
from services.learner.objectives.kl import kl_estimate
from services.learner.objectives.logprobs import token_statistics
from services.learner.objectives.objective import Objective
from services.learner.objectives.pairs import Pairs, preference_loss
from services.learner.objectives.penalty import penalised_advantages, returns_to_go
from services.learner.objectives.policy import Tokens, policy_loss
from services.learner.objectives.presets import preset
from services.learner.objectives.ratios import importance_ratio


def f64(*values: float, grad: bool = False) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64, requires_grad=grad)


def value_and_slope(loss: torch.Tensor, at: torch.Tensor) -> tuple[list[float], list[float]]:
    (slope,) = torch.autograd.grad(loss.sum(), at, allow_unused=True)
    return loss.tolist(), (torch.zeros_like(at) if slope is None else slope).tolist()


# Surrogates. ρ = e^x with x = new − old; d(ρ)/d(new) = ρ.


@pytest.mark.parametrize("advantage", [2.0, -2.0])
@pytest.mark.parametrize("x", [-1.0, -0.1, 0.0, 0.1, 1.0, 2.0])
@pytest.mark.parametrize("dual", [0.0, 3.0])
def test_clip(x: float, advantage: float, dual: float) -> None:
    """PPO's clip with DAPO's bounds (0.2 below, 0.28 above), and the dual clip of arXiv 1912.09729 at 3."""
    rho = math.exp(x)
    bounded = min(max(rho, 0.8), 1.28)
    objective = min(rho * advantage, bounded * advantage)
    live = rho * advantage <= bounded * advantage
    if dual and advantage < 0 and objective < dual * advantage:
        objective, live = dual * advantage, False
    new = f64(x, grad=True)
    loss, cut = clipped(torch.exp(new), f64(advantage), low=0.2, high=0.28, dual=dual)
    found, slope = value_and_slope(loss, new)
    assert found == pytest.approx([-objective], abs=1e-12)
    assert slope == pytest.approx([-rho * advantage if live else 0.0], abs=1e-12)
    assert cut.tolist() == [not live]


@pytest.mark.parametrize("x", [-1.0, 0.0, 0.2, 1.0])
def test_weighted_likelihood(x: float) -> None:
    """CISPO (arXiv 2506.13585): −sg(clip(ρ))·A·log π, whose slope is the weight itself, never zero."""
    weight = min(max(math.exp(x), 0.8), 1.28)
    new = f64(x, grad=True)
    loss, cut = weighted_likelihood(new, torch.exp(new), f64(1.5), low=0.2, high=0.28)
    found, slope = value_and_slope(loss, new)
    assert found == pytest.approx([-weight * 1.5 * x], abs=1e-12)
    assert slope == pytest.approx([-weight * 1.5], abs=1e-12)
    assert cut.tolist() == [weight != math.exp(x)]


def test_probability_gap_lets_rare_tokens_move() -> None:
    """From p = 1e-4 to 3e-4 is a ratio of 3 and a gap of 2e-4: cut by a clip, not by the gap."""
    new = f64(math.log(3e-4), math.log(0.9), grad=True)
    old = f64(math.log(1e-4), math.log(0.5))
    loss, cut = probability_gap(new, old, f64(1.0, 1.0), low=0.2, high=0.2, penalty=0.5)
    rare, often = math.log(3.0), math.log(1.8)
    found, slope = value_and_slope(loss, new)
    assert cut.tolist() == [False, True]
    assert found == pytest.approx([-3.0 + 0.5 * rare**2, 0.5 * often**2])
    assert slope == pytest.approx([-3.0 + rare, often])


def test_sequence_ratio() -> None:
    """GSPO (arXiv 2507.18071): s = exp(mean of log-ratios); the mean of its tokens' losses has slope −s·A/|o| each."""
    new, old = f64(-1.0, -2.0, -0.5, grad=True), f64(-1.2, -1.7, -0.4)
    rows = torch.tensor([0, 0, 1])
    ratio = importance_ratio(new, old, "sequence", rows, 2)
    first, second = math.exp((0.2 - 0.3) / 2), math.exp(-0.1)
    assert ratio.tolist() == pytest.approx([first, first, second])
    loss = -(ratio * f64(2.0, 2.0, 3.0) * f64(0.5, 0.5, 1.0))
    _, slope = value_and_slope(loss, new)
    # ds/dnew_t = s/|o|, and s·A counts once a sequence.
    assert slope == pytest.approx([-first * 2 / 2, -first * 2 / 2, -second * 3])


# KL and entropy.


@pytest.mark.parametrize(
    ("kind", "value", "slope"),
    [
        ("k1", lambda d: -d, lambda d: 1.0),
        ("k2", lambda d: d * d / 2, lambda d: -d),
        ("k3", lambda d: math.exp(d) - d - 1, lambda d: 1 - math.exp(d)),
        ("k3_k2_gradient", lambda d: math.exp(d) - d - 1, lambda d: -d),
        ("absolute", abs, lambda d: -math.copysign(1, d)),
    ],
)
@pytest.mark.parametrize("delta", [-1.5, -0.1, 0.3, 2.0])
def test_kl_estimators(kind: Any, value: Any, slope: Any, delta: float) -> None:
    new = f64(-3.0, grad=True)
    found, gradient = value_and_slope(kl_estimate(new, f64(-3.0 + delta), kind), new)
    assert found == pytest.approx([value(delta)], abs=1e-12)
    assert gradient == pytest.approx([slope(delta)], abs=1e-12)


def test_the_gradient_of_k2_is_that_of_the_true_kl() -> None:
    """In expectation over the policy's own samples: Σ_a p_a·∇k2(a) = ∇KL(p ‖ q), and k1 gives nothing at all."""
    logits = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64, requires_grad=True)
    q = torch.log_softmax(torch.tensor([0.0, 0.3, 1.0], dtype=torch.float64), -1)
    p = torch.log_softmax(logits, -1)
    (true,) = torch.autograd.grad((p.exp() * (p - q)).sum(), logits, retain_graph=True)
    for kind in ("k2", "k3_k2_gradient"):
        estimate = (p.detach().exp() * kl_estimate(p, q, kind)).sum()  # type: ignore[arg-type]
        (found,) = torch.autograd.grad(estimate, logits, retain_graph=True)
        torch.testing.assert_close(found, true)
    (nothing,) = torch.autograd.grad((p.detach().exp() * kl_estimate(p, q, "k1")).sum(), logits)
    assert nothing.abs().max() < 1e-15


def test_entropy_and_its_gradient() -> None:
    """H = −Σ p log p of softmax logits; ∂H/∂z_j = −p_j(log p_j + H)."""
    logits = [[2.0, 1.0, 0.0], [0.0, 5.0, 0.0]]
    hidden = torch.tensor(logits, dtype=torch.float64, requires_grad=True)
    entropies, slopes = [], []
    for row in logits:
        total = sum(map(math.exp, row))
        p = [math.exp(z) / total for z in row]
        entropy = -sum(x * math.log(x) for x in p)
        entropies.append(entropy)
        slopes.append([-x * (math.log(x) + entropy) for x in p])
    for chunk in (1, 10):
        _, found = token_statistics(
            hidden, torch.tensor([0, 2]), lambda states: states * 1.0, chunk, entropy_gradient=True
        )
        assert found.tolist() == pytest.approx(entropies, abs=1e-12)
        (gradient,) = torch.autograd.grad(found.sum(), hidden)
        assert np.asarray(gradient) == pytest.approx(np.array(slopes), abs=1e-12)


# Corrections.


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("none", [1.0, 1.0, 1.0]),
        ("truncated", [math.exp(0.5), 2.0, math.exp(-1.0)]),
        ("truncated_sequence", [2.0, 2.0, math.exp(-1.0)]),
        ("masked", [math.exp(0.5), 0.0, 0.0]),
        ("masked_sequence", [0.0, 0.0, 0.0]),
    ],
)
def test_corrections(kind: Any, expected: list[float]) -> None:
    """Row 0 has log-weights 0.5 and 1.0 (geometric mean e^0.75 = 2.12 > 2), row 1 has −1 (0.37 < 0.5)."""
    old, sampler = f64(-1.0, -1.0, -2.0, grad=True), f64(-1.5, -2.0, -1.0)
    rows = torch.tensor([0, 0, 1])
    weights = correction_weights(old, sampler, rows, 2, kind=kind, low=0.5, high=2.0)
    assert weights.tolist() == pytest.approx(expected)
    assert not weights.requires_grad


def test_a_sequence_is_kept_by_its_geometric_mean() -> None:
    old, sampler = f64(-1.0, -1.0), f64(-3.0, 0.5)
    weights = correction_weights(
        old, sampler, torch.tensor([0, 0]), 1, kind="masked_sequence", low=0.5, high=2.0
    )
    assert weights.tolist() == pytest.approx([math.exp(2.0), math.exp(-1.5)])  # mean 0.25


def test_an_overflowed_weight_is_rejected_and_not_nan() -> None:
    old, sampler = f64(0.0, -1.0), f64(-2000.0, -1.0)
    rows = torch.tensor([0, 1])
    for kind in ("masked", "masked_sequence"):
        weights = correction_weights(old, sampler, rows, 2, kind=kind, low=0.5, high=2.0)  # type: ignore[arg-type]
        assert weights.tolist() == [0.0, 1.0]


# Advantages.


def test_group_baselines() -> None:
    """R = 3, 1, 2: mean 2, sample deviation 1."""
    rewards = [3.0, 1.0, 2.0]
    assert group_advantages(rewards, "group_centered").tolist() == [1.0, -1.0, 0.0]
    assert group_advantages(rewards, "group_zscore", 0.25).tolist() == pytest.approx([0.8, -0.8, 0.0])
    others = [3 - (1 + 2) / 2, 1 - (3 + 2) / 2, 2 - (3 + 1) / 2]
    assert group_advantages(rewards, "leave_one_out").tolist() == pytest.approx(others)
    assert group_advantages(rewards, "raw").tolist() == rewards


def test_batch_normalisation() -> None:
    """REINFORCE++ (arXiv 2501.03262). Values 1, 0 of 1 and 3 tokens: mean 1/4, variance (9/16 + 3/16)/4 = 3/16."""
    by_token = whiten([1.0, 0.0], [1, 3], epsilon=0.0)
    assert by_token.tolist() == pytest.approx([0.75 / math.sqrt(3 / 16), -0.25 / math.sqrt(3 / 16)])
    by_attempt = whiten([1.0, 0.0], [1, 1], epsilon=0.0)
    assert by_attempt.tolist() == pytest.approx([1.0, -1.0])
    # Two attempts of value 0 that are not in the array weigh as much as if they were.
    silent = whiten([1.0, -1.0], [1, 1], epsilon=0.1, silent_mass=2)
    assert silent.tolist() == pytest.approx(whiten([1.0, -1.0, 0.0, 0.0], [1] * 4, 0.1)[:2].tolist())


def test_what_is_equal_is_exactly_zero() -> None:
    assert whiten([0.35] * 8, [1, 2, 3, 4, 5, 6, 7, 8]).tolist() == [0.0] * 8
    assert whiten([0.0] * 3, [1] * 3, silent_mass=4).tolist() == [0.0] * 3
    assert whiten([0.1], [5]).tolist() == [0.0]
    assert whiten([], []).tolist() == []
    assert (
        whiten([0.35] * 2, [1, 1], silent_mass=1).min() > 0
    )  # against what has the value 0 they are not equal
    assert not has_signal([0.5, 0.5]) and not has_signal([1.0]) and has_signal([0.0, 1.0])
    assert has_signal([1.0], "raw") and not has_signal([], "raw")


def test_returns_to_go() -> None:
    """Attempt 0 has two sequences, the later one first in the array: penalties 1, 2 | 3 give 10 − (6, 5, 3)."""
    penalty = np.array([3.0, 0.5, 1.0, 2.0])
    attempts, order = np.array([0, 1, 0, 0]), np.array([1, 0, 0, 0])
    found = returns_to_go(penalty, attempts, order, np.array([10.0, 20.0]))
    assert found.tolist() == pytest.approx([10 - 3, 20 - 0.5, 10 - 6, 10 - 5])


def test_kl_in_the_reward_of_a_group() -> None:
    """RLOO (arXiv 2402.14740): R − β·log-ratio of the whole answer, minus that of the other one."""
    penalty = np.array([0.1, 0.2, 0.5])
    found = penalised_advantages(
        penalty,
        np.array([0, 0, 1]),
        np.zeros(3, dtype=np.int64),
        rewards=[1.0, 0.0],
        groups=[7, 7],
        kind="leave_one_out",
        epsilon=0.0,
    )
    difference = (1 - 0.3) - (0 - 0.5)
    assert found.tolist() == pytest.approx([difference, difference, -difference])


def test_kl_in_the_reward_of_every_token() -> None:
    """REINFORCE++: returns 1 − .3, 1 − .2, 0 − .5, normalised over the three tokens, or with each attempt once."""
    penalty = np.array([0.1, 0.2, 0.5])
    values = np.array([0.7, 0.8, -0.5])
    for norm, mass in (("tokens", np.ones(3)), ("attempts", np.array([0.5, 0.5, 1.0]))):
        found = penalised_advantages(
            penalty,
            np.array([0, 0, 1]),
            np.zeros(3, dtype=np.int64),
            rewards=[1.0, 0.0],
            groups=[0, 1],
            kind="raw",
            epsilon=0.0,
            batch_norm=norm,  # type: ignore[arg-type]
        )
        mean = (mass * values).sum() / mass.sum()
        deviation = math.sqrt((mass * (values - mean) ** 2).sum() / mass.sum())
        assert found.tolist() == pytest.approx(((values - mean) / deviation).tolist())


# Aggregation.


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("token_mean", [1 / 4, 1 / 4]),
        ("sequence_mean", [1 / 2, 1 / (3 * 2)]),
        ("sequence_sum", [1 / 2, 1 / 2]),
        ("sequence_sum_constant", [1 / (2 * 10), 1 / (2 * 10)]),
    ],
)
def test_token_weights(kind: Any, expected: list[float]) -> None:
    """Attempts of 1 and 3 tokens, a constant of 10."""
    batch = Denominators(tokens=4, attempts=2, length=10)
    assert [token_weight(kind, n, batch) for n in (1, 3)] == pytest.approx(expected)


# Whole objectives.


def tokens(new: torch.Tensor, **changes: Any) -> Tokens:
    n = new.numel()
    fields: dict[str, Any] = {
        "new": new,
        "sampler": new.detach(),
        "old": new.detach(),
        "advantage": torch.ones(n, dtype=torch.float64),
        "weight": torch.full((n,), 1 / n, dtype=torch.float64),
        "rows": torch.zeros(n, dtype=torch.int64),
        "count": 1,
    }
    return Tokens(**{**fields, **changes})


def test_decoupled_ppo() -> None:
    """arXiv 2110.00641: E[w·min(ρA, clip(ρ)A)], w = π_prox/π_behave capped at 5, ρ = π/π_prox."""
    new, proximal, behave = f64(-1.0, -1.0, -1.0, grad=True), f64(-1.1, -2.0, -1.0), f64(-1.5, -2.0, -4.0)
    objective = preset("decoupled_ppo")
    terms = policy_loss(tokens(new, old=proximal, sampler=behave, advantage=f64(1.0, 1.0, -1.0)), objective)
    # Token 1: ρ = e^0.1 inside, w = e^0.4. Token 2: ρ = e^1 cut at 1.2, w = 1. Token 3: w = e^3 > 5: rejected.
    first = math.exp(0.1) * math.exp(0.4)
    assert terms.policy.item() == pytest.approx(-(first + 1.2 + 0) / 3)
    (slope,) = torch.autograd.grad(terms.policy, new)
    assert slope.tolist() == pytest.approx([-first / 3, 0.0, 0.0])


def test_reference_terms_and_entropy_are_added() -> None:
    """A loss of policy + β·KL − c·H, each over the tokens on which it may act."""
    new, reference = f64(-1.0, -2.0, grad=True), f64(-1.5, -1.0)
    entropy = f64(0.7, 0.9, grad=True)
    objective = preset("grpo", kl_coefficient=0.1, kl_estimator="k2", entropy_coefficient=0.01)
    made = tokens(new, reference=reference, entropy=entropy, kl_mask=f64(1.0, 0.0))
    terms = policy_loss(made, objective)
    loss = terms.total(0.1, objective.entropy_coefficient)
    assert loss.item() == pytest.approx(-1.0 + 0.1 * (0.25 / 2) / 2 - 0.01 * 0.7 / 2)
    on_new, on_entropy = torch.autograd.grad(loss, [new, entropy])
    assert on_new.tolist() == pytest.approx([-0.5 + 0.1 * 0.5 / 2, -0.5])
    assert on_entropy.tolist() == pytest.approx([-0.01 / 2, 0.0])


def test_a_kl_in_the_reward_has_no_term_of_its_own() -> None:
    new, reference = f64(-1.0, -2.0, grad=True), f64(-1.5, -1.0)
    objective = preset("rloo", kl_coefficient=0.1)
    terms = policy_loss(tokens(new, reference=reference), objective)
    assert terms.kl.item() == 0 and terms.kl_tokens.tolist() == pytest.approx([0.5, -1.0])
    (slope,) = torch.autograd.grad(terms.total(0.1), new)
    assert slope.tolist() == pytest.approx([-0.5, -0.5])


def test_sft_is_the_mean_negative_log_likelihood() -> None:
    new = f64(-1.0, -3.0, grad=True)
    terms = policy_loss(tokens(new), preset("sft"))
    assert terms.policy.item() == pytest.approx(2.0)
    (slope,) = torch.autograd.grad(terms.policy, new)
    assert slope.tolist() == [-0.5, -0.5]


# Pairs. Chosen: tokens −1, −2 (reference −1.5, −2.5); rejected: −3, −1, −1 (reference −2, −1, −1). Sums: h = 1 + 1 = 2;
# means: 1/2 + 1/3 = 5/6.

LOGISTIC = {x: 1 / (1 + math.exp(-x)) for x in (0.2, -0.2, 5.0 * 5 / 6)}


def pairs(new: torch.Tensor, reference: bool = True) -> Pairs:
    return Pairs(
        new=new,
        reference=f64(-1.5, -2.5, -2.0, -1.0, -1.0) if reference else None,
        rows=torch.tensor([0, 0, 1, 1, 1]),
        count=2,
        chosen=torch.tensor([0]),
        rejected=torch.tensor([1]),
        weight=f64(1.0),
    )


def paired(objective: Objective) -> tuple[float, list[float]]:
    new = f64(-1.0, -2.0, -3.0, -1.0, -1.0, grad=True)
    terms = preference_loss(pairs(new, not objective.reference_free), objective)
    (slope,) = torch.autograd.grad(terms.loss, new)
    return terms.loss.item(), slope.tolist()


def test_dpo() -> None:
    """arXiv 2305.18290: −log σ(0.1·2); slope −β·σ(−βh) on the chosen, + on the rejected."""
    loss, slope = paired(preset("dpo"))
    assert loss == pytest.approx(-math.log(LOGISTIC[0.2]))
    s = 0.1 * LOGISTIC[-0.2]
    assert slope == pytest.approx([-s, -s, s, s, s])


def test_dpo_with_doubtful_labels() -> None:
    loss, slope = paired(preset("dpo", label_smoothing=0.25))
    assert loss == pytest.approx(-0.75 * math.log(LOGISTIC[0.2]) - 0.25 * math.log(LOGISTIC[-0.2]))
    s = 0.1 * (0.75 * LOGISTIC[-0.2] - 0.25 * LOGISTIC[0.2])
    assert slope == pytest.approx([-s, -s, s, s, s])


def test_length_normalised_dpo() -> None:
    """arXiv 2411.15124: means over tokens, β = 5."""
    loss, slope = paired(preset("dpo_length_normalised"))
    z = 5 * 5 / 6
    assert loss == pytest.approx(-math.log(LOGISTIC[z]))
    s = 5 * (1 - LOGISTIC[z])
    assert slope == pytest.approx([-s / 2, -s / 2, s / 3, s / 3, s / 3])


def test_ipo() -> None:
    """arXiv 2310.12036: (h − 1/(2β))² = (2 − 5)², slope 2(h − 5)."""
    loss, slope = paired(preset("ipo"))
    assert loss == pytest.approx(9.0)
    assert slope == pytest.approx([-6.0, -6.0, 6.0, 6.0, 6.0])


def test_simpo() -> None:
    """arXiv 2405.14734: mean log-probabilities −1.5 and −5/3, β = 2, γ = 1: −log σ(2/6 − 1)."""
    loss, slope = paired(preset("simpo"))
    z = 2 * (-1.5 + 5 / 3) - 1
    assert loss == pytest.approx(math.log(1 + math.exp(-z)))
    s = 2 / (1 + math.exp(z))
    assert slope == pytest.approx([-s / 2, -s / 2, s / 3, s / 3, s / 3])


def test_pairs_need_what_their_objective_says() -> None:
    new = f64(-1.0, -2.0, -3.0, -1.0, -1.0)
    with pytest.raises(ValueError, match="reference are missing"):
        preference_loss(pairs(new, reference=False), preset("dpo"))
    with pytest.raises(ValueError, match="given to an objective without one"):
        preference_loss(pairs(new), preset("simpo"))
    with pytest.raises(ValueError, match="'policy' has no pairs"):
        preference_loss(pairs(new), preset("grpo"))
    with pytest.raises(ValueError, match="preference objective has pairs"):
        policy_loss(tokens(new), preset("dpo"))
