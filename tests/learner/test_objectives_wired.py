"""The step does what the parts say: batch baselines, KL in the reward, entropy, however the batch is cut."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from learner_builders import reward, sequence, trajectory
from learner_models import VOCABULARY, small_policy

from services.learner.batching import Batch, assemble, micro_batches
from services.learner.beforehand import Measured, know, measure
from services.learner.collate import collate
from services.learner.gradient import Gradient
from services.learner.intake.attempts import Terms
from services.learner.intake.groups import JudgedGroup, judge
from services.learner.intake.join import FilledSlot
from services.learner.model import PolicyModel
from services.learner.objectives.advantages import whiten
from services.learner.objectives.presets import Objective, preset
from services.learner.step import Step

REFERENCE = small_policy(torch.float64, seed=3)


def group(objective: Objective, index: int, rewards: list[float], lengths: list[int]) -> JudgedGroup:
    """Attempts of `lengths` tokens at a prompt of their own; the last one has two contexts."""
    slots = {}
    for sample, (value, n) in enumerate(zip(rewards, lengths, strict=True)):
        ids = [(7 * index + 3 * sample + t) % VOCABULARY for t in range(n)]
        contexts = [sequence([1, 2, index], ids, [-2.0] * n)]
        if sample == len(rewards) - 1:
            contexts.append(sequence([9, index], [4, 5], [-1.5, -3.0]))
        made = trajectory(f"0-rl-{index:07d}", sample, size=len(rewards), sequences=tuple(contexts))
        slots[sample] = FilledSlot(made, reward(made, value), (), "")
    terms = Terms(objective, vocabulary=VOCABULARY, max_tokens=128, version=0, max_lag=1)
    return judge(f"0-rl-{index:07d}", slots, terms)


def groups(objective: Objective) -> list[JudgedGroup]:
    return [
        group(objective, 0, [1.0, 0.0], [2, 5]),
        group(objective, 1, [0.5, 0.5], [3, 1]),
        group(objective, 2, [0.0, 1.0, 0.25], [1, 4, 2]),
    ]


def gradient(
    policy: PolicyModel, batch: Batch, objective: Objective, tokens: int = 10_000
) -> tuple[float, torch.Tensor]:
    policy.model.zero_grad()
    reference = REFERENCE if objective.kl_coefficient > 0 else None
    taken = Gradient(policy, micro_batch_tokens=tokens, reference=reference)
    sums = taken.accumulate(batch, objective, objective.kl_coefficient).sums
    grads = [p.grad.flatten() for p in policy.model.parameters() if p.grad is not None]
    return sums.loss, torch.cat(grads)


@pytest.mark.parametrize(
    "objective",
    [
        preset("reinforce_plus_plus"),
        preset("reinforce_plus_plus", kl_coefficient=0.3),
        preset("reinforce_plus_plus_baseline", kl_coefficient=0.3),
        preset("rloo", kl_coefficient=0.3),
        preset("rloo", kl_coefficient=0.3, kl_on_zero_signal=True, old_logprobs="recompute"),
        preset("grpo", entropy_coefficient=0.5),
    ],
    ids=["rpp", "rpp kl", "rpp baseline kl", "rloo kl", "rloo kl everywhere", "entropy"],
)
def test_same_loss_however_it_is_cut(objective: Objective) -> None:
    policy = small_policy(torch.float64)
    judged = groups(objective)
    loss, whole = gradient(policy, assemble(judged, objective, 1000, pack=False), objective)
    assert float(whole.norm()) > 1e-3
    for order, pack, micro in [(judged, True, 10_000), (judged[::-1], True, 20), (judged[::-1], False, 1)]:
        other, grads = gradient(policy, assemble(order, objective, 1000, pack), objective, micro)
        assert other == pytest.approx(loss, rel=1e-6, abs=1e-9)
        assert float((grads - whole).norm()) <= 1e-6 * float(whole.norm())


def test_batch_normalisation_counts_the_whole_batch() -> None:
    """The group without signal is not computed with a group baseline, and counts with the value 0 all the same."""
    raw = preset("reinforce_plus_plus")
    batch = assemble(groups(raw), raw, 1000)
    rewards, sizes = [1.0, 0.0, 0.5, 0.5, 0.0, 1.0, 0.25], [2, 5 + 2, 3, 1 + 2, 1, 4, 2 + 2]
    assert [attempt.tokens for attempt in batch.attempts] == sizes
    assert [attempt.advantage for attempt in batch.attempts] == pytest.approx(whiten(rewards, sizes).tolist())
    based = preset("reinforce_plus_plus_baseline")
    batch = assemble(groups(based), based, 1000)
    mean = 1.25 / 3
    centered = [0.5, -0.5, 0.0, 0.0, -mean, 1 - mean, 0.25 - mean]
    expected = whiten(centered, sizes)[[0, 1, 4, 5, 6]]
    assert [attempt.advantage for attempt in batch.attempts] == pytest.approx(expected.tolist())


def test_a_batch_that_is_all_alike_teaches_nothing_not_even_a_kl() -> None:
    objective = preset("reinforce_plus_plus", kl_coefficient=0.3)
    policy = small_policy(torch.float64)
    batch = assemble([group(objective, 0, [0.35] * 3, [2, 3, 4])], objective, 1000)
    assert {(attempt.advantage, attempt.kl) for attempt in batch.attempts} == {(0.0, False)}
    _, grads = gradient(policy, batch, objective)
    assert not grads.any()


def test_a_coefficient_of_nothing_is_no_penalty() -> None:
    objective = preset("rloo", kl_coefficient=0.3)
    policy = small_policy(torch.float64)
    batch = assemble(groups(objective), objective, 1000)
    _, expected = gradient(policy, batch, preset("rloo"))
    _, tiny = gradient(policy, batch, objective.model_copy(update={"kl_coefficient": 1e-12}))
    # Of the whole: the model itself takes norms and rotations in float32.
    assert float((tiny - expected).norm()) <= 1e-6 * float(expected.norm())


def test_the_reward_pays_for_the_kl_of_the_whole_attempt() -> None:
    """Two attempts of one group under RLOO: the difference of rewards less β·(Σ log-ratios), by hand."""
    objective = preset("rloo", kl_coefficient=0.3)
    policy = small_policy(torch.float64)
    judged = [group(objective, 0, [1.0, 0.0], [2, 3])]
    batch = assemble(judged, objective, 1000)
    micro = collate(batch.rows)
    with torch.no_grad():
        reference = REFERENCE.statistics(micro)[0].numpy()
    ratios = micro.sampler.double().numpy() - reference
    owners = micro.attempts.numpy()
    paid = [1.0 - 0.3 * ratios[owners == 0].sum(), 0.0 - 0.3 * ratios[owners == 1].sum()]
    by_hand = np.where(owners == 0, paid[0] - paid[1], paid[1] - paid[0])
    new, _ = policy.statistics(micro)
    weight = 1 / owners.size
    policy.model.zero_grad()
    (-weight * torch.from_numpy(by_hand) * new).sum().backward()
    expected = torch.cat([p.grad.flatten() for p in policy.model.parameters() if p.grad is not None])
    _, found = gradient(policy, batch, objective)
    assert float((found - expected).norm()) <= 1e-6 * float(expected.norm())


def test_a_later_context_is_paid_for_by_the_earlier_one() -> None:
    """The second context is longer, so it is computed first: its tokens still come after those of the first."""
    objective = preset("reinforce_plus_plus", kl_coefficient=0.3, batch_norm="none")
    policy = small_policy(torch.float64)
    contexts = (sequence([1, 2], [3, 4], [-2.0, -2.5]), sequence([9], [5, 6, 7, 8], [-1.0, -1.5, -2.0, -3.0]))
    made = trajectory(size=1, sequences=contexts)
    terms = Terms(objective, vocabulary=VOCABULARY, max_tokens=128, version=0, max_lag=1)
    judged = judge("0-rl-0000000", {0: FilledSlot(made, reward(made, 1.0), (), "")}, terms)
    batch = assemble([judged], objective, 1000)
    cuts = [collate(rows) for rows in micro_batches(batch.rows, 1)]
    assert [micro.order[0].item() for micro in cuts] == [1, 0]
    measured = [measure(micro, objective, 0.3, policy=policy, reference=REFERENCE) for micro in cuts]
    known = know(measured, [Measured.joined(measured)], 0, batch, objective)
    with torch.no_grad():
        second, first = (
            0.3 * (micro.sampler.double() - REFERENCE.statistics(micro)[0]).numpy() for micro in cuts
        )
    in_time = np.concatenate([first, second])
    returns = 1.0 - np.cumsum(in_time[::-1])[::-1]
    found = [part.advantages for part in known]
    assert found[0] is not None and found[1] is not None
    assert found[1].tolist() == pytest.approx(returns[:2].tolist())
    assert found[0].tolist() == pytest.approx(returns[2:].tolist())


def test_an_entropy_term_flattens_the_policy() -> None:
    policy = small_policy(torch.float64)
    objective = preset("grpo", entropy_coefficient=10.0)
    batch = assemble(groups(objective), objective, 1000)
    optimizer = torch.optim.SGD(policy.model.parameters(), lr=0.05)
    step = Step(policy, optimizer, micro_batch_tokens=40, max_gradient_norm=1.0)
    entropies = [step.take(batch, objective, 0.05, 0.0).entropy for _ in range(8)]
    assert entropies[-1] > entropies[0] + 0.01
    assert step.take(batch, objective, 0.05, 0.0).terms["entropy"] > 0
