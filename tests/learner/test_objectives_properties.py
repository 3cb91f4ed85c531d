"""What holds for every objective on any batch: order, cuts, zero advantages and policies that have not moved."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from services.learner.objectives.advantages import group_advantages, whiten
from services.learner.objectives.aggregation import Denominators, token_weight
from services.learner.objectives.clipping import clipped
from services.learner.objectives.correction import correction_weights
from services.learner.objectives.kl import kl_estimate
from services.learner.objectives.objective import Objective
from services.learner.objectives.pairs import Pairs, preference_loss
from services.learner.objectives.penalty import penalised_advantages
from services.learner.objectives.policy import Tokens, policy_loss
from services.learner.objectives.presets import PRESETS, preset
from services.learner.objectives.shaping import overlong_penalty

KL = {"kl_coefficient": 0.2}
OBJECTIVES: dict[str, Objective] = {
    **{name: preset(name) for name in PRESETS if preset(name).kind == "policy"},
    "grpo with kl, entropy and dual clip": preset("grpo", **KL, entropy_coefficient=0.1, clip_dual=1.5),
    "rloo with kl": preset("rloo", **KL),
    "reinforce_plus_plus with kl": preset("reinforce_plus_plus", **KL),
    "reinforce_plus_plus_baseline with kl": preset("reinforce_plus_plus_baseline", **KL),
    "attempts normalised": preset("dr_grpo", batch_norm="attempts"),
    "truncated": preset("grpo", old_logprobs="recompute", correction="truncated"),
    "masked_sequence": preset("gspo", old_logprobs="recompute", correction="masked_sequence"),
    "truncated_sequence": preset("cispo", old_logprobs="recompute", correction="truncated_sequence"),
}
every_objective = pytest.mark.parametrize("name", OBJECTIVES)
few = settings(max_examples=10, deadline=None)


@dataclass(frozen=True)
class Drawn:
    """A batch of attempts in groups; per attempt arrays of its tokens' numbers."""

    lengths: list[int]
    groups: list[int]
    rewards: list[float]
    logprobs: list[dict[str, np.ndarray[Any, Any]]]

    def reordered(self, order: list[int]) -> Drawn:
        return Drawn(
            [self.lengths[i] for i in order],
            [self.groups[i] for i in order],
            [self.rewards[i] for i in order],
            [self.logprobs[i] for i in order],
        )

    def flat(self, key: str, which: list[int]) -> torch.Tensor:
        return torch.from_numpy(np.concatenate([self.logprobs[i][key] for i in which]))


@st.composite
def batches(draw: st.DrawFn, on_policy: bool = False) -> Drawn:
    groups = [group for group in range(draw(st.integers(1, 3))) for _ in range(draw(st.integers(2, 4)))]
    lengths = [draw(st.integers(1, 5)) for _ in groups]
    rewards = [draw(st.sampled_from([0.0, 0.25, 1.0])) for _ in groups]
    noise = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    logprobs = []
    for n in lengths:
        new = -noise.exponential(1.0, n)
        moved = 0.0 if on_policy else 1.0
        logprobs.append(
            {
                "new": new,
                "old": new + moved * noise.normal(0, 0.3, n),
                "sampler": new + moved * noise.normal(0, 0.5, n),
                "reference": new + noise.normal(0, 0.5, n),
                "entropy": noise.exponential(1.0, n),
            }
        )
    return Drawn(lengths, groups, rewards, logprobs)


def advantages(drawn: Drawn, objective: Objective) -> np.ndarray[Any, Any]:
    """One a token, over the whole batch."""
    everything = list(range(len(drawn.lengths)))
    owners = np.repeat(everything, drawn.lengths)
    penalty = np.zeros(owners.size)
    if objective.kl_place == "reward":
        estimate = kl_estimate(
            drawn.flat("old", everything), drawn.flat("reference", everything), objective.kl_estimator
        )
        penalty = objective.kl_coefficient * estimate.numpy()
    return penalised_advantages(
        penalty,
        owners,
        np.zeros_like(owners),
        rewards=drawn.rewards,
        groups=drawn.groups,
        kind=objective.advantage,
        epsilon=objective.advantage_epsilon,
        batch_norm=objective.batch_norm,
    )


def share(
    drawn: Drawn, objective: Objective, which: list[int], advantage: np.ndarray[Any, Any]
) -> tuple[float, np.ndarray[Any, Any]]:
    """(loss, gradient over log-probabilities and entropies) of some attempts, with the batch's denominators."""
    batch = Denominators(sum(drawn.lengths), len(drawn.lengths), length=7)
    weights = [token_weight(objective.aggregation, drawn.lengths[i], batch) for i in which]
    sizes = torch.tensor([drawn.lengths[i] for i in which])
    starts = np.concatenate([[0], np.cumsum(drawn.lengths)])
    picked = np.concatenate([advantage[starts[i] : starts[i + 1]] for i in which])
    new = drawn.flat("new", which).requires_grad_()
    entropy = drawn.flat("entropy", which).requires_grad_()
    terms = policy_loss(
        Tokens(
            new=new,
            sampler=drawn.flat("sampler", which),
            old=drawn.flat("old", which),
            advantage=torch.from_numpy(picked),
            weight=torch.tensor(weights, dtype=torch.float64).repeat_interleave(sizes),
            rows=torch.arange(len(which)).repeat_interleave(sizes),
            count=len(which),
            reference=drawn.flat("reference", which) if objective.kl_coefficient else None,
            entropy=entropy,
        ),
        objective,
    )
    loss = terms.total(objective.kl_coefficient, objective.entropy_coefficient)
    slopes = torch.autograd.grad(loss, [new, entropy], allow_unused=True)
    parts = [torch.zeros_like(new) if slope is None else slope for slope in slopes]
    return loss.item(), torch.stack(parts).numpy()


def whole(drawn: Drawn, objective: Objective) -> tuple[float, np.ndarray[Any, Any]]:
    return share(drawn, objective, list(range(len(drawn.lengths))), advantages(drawn, objective))


def close(left: Any, right: Any) -> None:
    np.testing.assert_allclose(left, right, rtol=1e-9, atol=1e-11)


@every_objective
@few
@given(st.data())
def test_any_cut_gives_the_same_loss_and_gradient(name: str, data: st.DataObject) -> None:
    objective, drawn = OBJECTIVES[name], data.draw(batches())
    loss, gradient = whole(drawn, objective)
    order = data.draw(st.permutations(range(len(drawn.lengths))))
    pieces: list[list[int]] = [[]]
    for index in order:
        if pieces[-1] and data.draw(st.booleans()):
            pieces.append([])
        pieces[-1].append(index)
    advantage = advantages(drawn, objective)
    starts = np.concatenate([[0], np.cumsum(drawn.lengths)])
    total, rebuilt = 0.0, np.zeros_like(gradient)
    for piece in pieces:
        part, slopes = share(drawn, objective, piece, advantage)
        total += part
        rebuilt[:, np.concatenate([np.arange(starts[i], starts[i + 1]) for i in piece])] = slopes
    close(total, loss)
    close(rebuilt, gradient)


@every_objective
@few
@given(st.data())
def test_the_order_of_attempts_is_nothing(name: str, data: st.DataObject) -> None:
    objective, drawn = OBJECTIVES[name], data.draw(batches())
    order = list(data.draw(st.permutations(range(len(drawn.lengths)))))
    loss, gradient = whole(drawn, objective)
    moved_loss, moved = whole(drawn.reordered(order), objective)
    starts = np.concatenate([[0], np.cumsum(drawn.lengths)])
    close(moved_loss, loss)
    close(moved, gradient[:, np.concatenate([np.arange(starts[i], starts[i + 1]) for i in order])])


@every_objective
@few
@given(drawn=batches())
def test_without_advantage_there_is_no_policy_gradient(name: str, drawn: Drawn) -> None:
    objective = OBJECTIVES[name].model_copy(update={"gap_penalty": 0.0, "entropy_coefficient": 0.0})
    tokens = sum(drawn.lengths)
    for silent in (np.zeros(tokens), np.full(tokens, -0.0)):
        bare = objective.model_copy(update={"kl_coefficient": 0.0})
        loss, gradient = share(drawn, bare, list(range(len(drawn.lengths))), silent)
        assert loss == 0 and not gradient.any()


@every_objective
@few
@given(drawn=batches())
def test_equal_rewards_give_no_advantage_at_all(name: str, drawn: Drawn) -> None:
    """The trap of the tiny deviation, for every estimator (a KL that rewards pay for tells attempts apart)."""
    objective = OBJECTIVES[name].model_copy(update={"kl_coefficient": 0.0})
    equal = Drawn(drawn.lengths, drawn.groups, [0.35] * len(drawn.rewards), drawn.logprobs)
    if objective.advantage == "raw" and objective.batch_norm == "none":
        return
    assert not advantages(equal, objective).any()


@every_objective
@few
@given(drawn=batches(on_policy=True))
def test_a_policy_that_has_not_moved_is_not_clipped(name: str, drawn: Drawn) -> None:
    """Ratio and correction are 1: every surrogate has the gradient −weight·A of plain policy gradients."""
    objective = OBJECTIVES[name].model_copy(update={"entropy_coefficient": 0.0, "kl_coefficient": 0.0})
    advantage = advantages(drawn, objective)
    everything = list(range(len(drawn.lengths)))
    _, gradient = share(drawn, objective, everything, advantage)
    batch = Denominators(sum(drawn.lengths), len(drawn.lengths), length=7)
    weight = np.repeat([token_weight(objective.aggregation, n, batch) for n in drawn.lengths], drawn.lengths)
    close(gradient[0], -weight * advantage)


finite = st.floats(-5, 5)
positive = st.floats(0.01, 5)
eighths = st.integers(-80, 80).map(lambda n: n / 8)
"""Numbers whose sums are exact, so that a shift does not turn equal rewards into unequal ones."""


@given(st.lists(eighths, min_size=2, max_size=8), eighths)
def test_group_advantages_compare(rewards: list[float], shift: float) -> None:
    values = np.array(rewards)
    for kind in ("group_zscore", "group_centered", "leave_one_out"):
        found = group_advantages(rewards, kind)  # type: ignore[arg-type]
        assert abs(found.sum()) < 1e-9 * (1 + np.abs(found).sum())
        assert (np.diff(found[np.argsort(values, kind="stable")]) >= 0).all()
        close(group_advantages((values + shift).tolist(), kind), found)  # type: ignore[arg-type]
    others = (values.sum() - values) / (values.size - 1)
    close(group_advantages(rewards, "leave_one_out"), values - others)


@given(st.lists(st.tuples(st.floats(-10, 10), st.integers(1, 9)), min_size=2, max_size=8))
def test_a_whitened_batch_has_mean_zero_and_deviation_at_most_one(drawn: list[tuple[float, int]]) -> None:
    values, mass = (np.array(column, dtype=np.float64) for column in zip(*drawn, strict=True))
    out = whiten(values, mass)
    mean = float((mass * out).sum() / mass.sum())
    assert abs(mean) < 1e-6
    assert float((mass * out**2).sum() / mass.sum()) <= 1 + 1e-6
    repeated = whiten(np.repeat(values, mass.astype(int)), np.ones(int(mass.sum())))
    np.testing.assert_allclose(np.repeat(out, mass.astype(int)), repeated, atol=1e-6)


@given(st.floats(-10, 10), st.floats(-10, 10))
def test_kl_estimates_are_distances(new: float, other: float) -> None:
    a, b = torch.tensor(new, dtype=torch.float64), torch.tensor(other, dtype=torch.float64)
    for kind in ("k2", "k3", "k3_k2_gradient", "absolute"):
        value = float(kl_estimate(a, b, kind))  # type: ignore[arg-type]
        assert value >= -1e-12 and (value > 0 or abs(new - other) < 1e-6)
    assert float(kl_estimate(a, b, "k1")) == -float(kl_estimate(b, a, "k1"))


@given(st.floats(-4, 4), finite, positive, st.floats(0, 1), st.floats(1.01, 9))
def test_a_clipped_loss_is_the_pessimistic_one(
    log_ratio: float, advantage: float, high: float, low: float, dual: float
) -> None:
    ratio, a = (
        torch.tensor(log_ratio, dtype=torch.float64).exp(),
        torch.tensor(advantage, dtype=torch.float64),
    )
    loss, _ = clipped(ratio, a, low=low, high=high)
    assert float(loss) >= float(-ratio * a)
    bounded, _ = clipped(ratio, a, low=low, high=high, dual=dual)
    assert float(bounded) <= float(loss)
    if advantage < 0:
        assert float(bounded) <= -dual * advantage + 1e-12
    else:
        assert float(bounded) == float(loss)


@given(st.lists(st.floats(-300, 300), min_size=1, max_size=6), st.floats(0, 1), st.floats(1, 10))
def test_corrections_are_bounded(gaps: list[float], low: float, high: float) -> None:
    old, sampler = torch.tensor(gaps, dtype=torch.float64), torch.zeros(len(gaps), dtype=torch.float64)
    rows = torch.zeros(len(gaps), dtype=torch.int64)
    for kind in ("truncated", "truncated_sequence"):
        weight = correction_weights(old, sampler, rows, 1, kind=kind, low=low, high=high)  # type: ignore[arg-type]
        assert bool(((weight >= 0) & (weight <= high)).all())
    masked = correction_weights(old, sampler, rows, 1, kind="masked", low=low, high=high)
    assert bool(((masked == 0) | ((masked >= low) & (masked <= high))).all())


@given(st.integers(1, 200), st.integers(1, 100), st.integers(0, 100))
def test_longer_is_never_better(length: int, limit: int, cache: int) -> None:
    now, longer = (overlong_penalty(n, limit, min(cache, limit)) for n in (length, length + 1))
    assert -1 <= longer <= now <= 0


@pytest.mark.parametrize("name", [name for name in PRESETS if preset(name).kind == "preference"])
@few
@given(data=st.data())
def test_pairs_do_not_depend_on_cuts_order_or_sides(name: str, data: st.DataObject) -> None:
    objective = preset(name)
    count = data.draw(st.integers(1, 4))
    lengths = [data.draw(st.integers(1, 4)) for _ in range(2 * count)]
    noise = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    new = [-noise.exponential(1.0, n) for n in lengths]
    reference = [-noise.exponential(1.0, n) for n in lengths]

    def loss(which: list[int], swapped: bool = False) -> float:
        rows = [row for pair in which for row in (2 * pair, 2 * pair + 1)]
        sizes = torch.tensor([lengths[row] for row in rows])
        first, second = torch.arange(0, len(rows), 2), torch.arange(1, len(rows), 2)
        made = Pairs(
            new=torch.from_numpy(np.concatenate([new[row] for row in rows])),
            reference=(
                None
                if objective.reference_free
                else torch.from_numpy(np.concatenate([reference[row] for row in rows]))
            ),
            rows=torch.arange(len(rows)).repeat_interleave(sizes),
            count=len(rows),
            chosen=second if swapped else first,
            rejected=first if swapped else second,
            weight=torch.full((len(which),), 1 / count, dtype=torch.float64),
        )
        return preference_loss(made, objective).loss.item()

    order = list(data.draw(st.permutations(range(count))))
    cut = data.draw(st.integers(0, count))
    parts = [part for part in (order[:cut], order[cut:]) if part]
    assert math.isclose(sum(map(loss, parts)), loss(list(range(count))), rel_tol=1e-9, abs_tol=1e-12)
    for pair in range(count):
        sums = [(a - (0 if objective.reference_free else b)) for a, b in zip(new, reference, strict=True)]
        score = [part.mean() if objective.length_normalised else part.sum() for part in sums]
        h = score[2 * pair] - score[2 * pair + 1]
        # −log σ(z) + log σ(−z) = −z; for the square (h−c)² − (−h−c)² = −4ch.
        slope = 2 / objective.beta if objective.preference == "squared" else objective.beta
        if objective.margin == 0:
            assert math.isclose(
                count * (loss([pair]) - loss([pair], swapped=True)), -slope * h, rel_tol=1e-6, abs_tol=1e-9
            )
