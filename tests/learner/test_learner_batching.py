"""The loss and its gradient do not depend on how a batch is cut, padded, ordered or packed."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from learner_builders import reward, sequence, trajectory
from learner_models import VOCABULARY, small_policy

from services.learner.attention_cost import causal, masked
from services.learner.batching import Batch, assemble, micro_batches
from services.learner.collate import collate
from services.learner.gradient import Gradient
from services.learner.intake.attempts import Terms
from services.learner.intake.groups import JudgedGroup, judge
from services.learner.intake.join import FilledSlot
from services.learner.model import PolicyModel
from services.learner.model_check import check_model
from services.learner.objectives.logprobs import token_statistics
from services.learner.objectives.presets import Objective, preset
from services.learner.rows import Branch, Row, rows_of
from shared.contracts import Sequence

TERMS = Terms(preset("grpo"), vocabulary=VOCABULARY, max_tokens=128, version=0, max_lag=1)


def ids(draw: random.Random, n: int) -> list[int]:
    return [draw.randrange(VOCABULARY) for _ in range(n)]


def agentic(draw: random.Random, prompt: list[int]) -> Sequence:
    """Prompt, a sampled turn, a tool's result, another sampled turn."""
    first, tool, second = ids(draw, 3), ids(draw, 4), ids(draw, 2)
    whole = sequence(prompt, first + tool + second, [-1.5] * 9)
    mask = np.array(whole.loss_mask)
    start = len(prompt) + len(first)
    mask[start : start + len(tool)] = 0
    return whole.model_copy(update={"loss_mask": mask})


def groups(objective: Objective, seed: int = 0, count: int = 3, size: int = 4) -> list[JudgedGroup]:
    """Groups of different prompts and lengths, one of them with attempts of two contexts and tools."""
    draw = random.Random(seed)
    out = []
    for index in range(count):
        prompt = ids(draw, draw.randint(1, 6))
        slots = {}
        for sample in range(size):
            made = trajectory(
                f"0-rl-{index:07d}",
                sample,
                size=size,
                sequences=(
                    (agentic(draw, prompt), agentic(draw, ids(draw, 5)))
                    if index == 1
                    else (sequence(prompt, n := ids(draw, draw.randint(1, 9)), [-2.0] * len(n)),)
                ),
            )
            slots[sample] = FilledSlot(
                made, reward(made, float(sample % 2) if index else 0.25 * sample), (), ""
            )
        out.append(judge(f"0-rl-{index:07d}", slots, TERMS))
    return out


def gradient(
    policy: PolicyModel, batch: Batch, objective: Objective, tokens: int
) -> tuple[float, torch.Tensor]:
    policy.model.zero_grad()
    taken = Gradient(policy, micro_batch_tokens=tokens)
    sums = taken.accumulate(batch, objective, objective.kl_coefficient).sums
    grads = [p.grad.flatten() for p in policy.model.parameters() if p.grad is not None]
    return sums.loss, torch.cat(grads)


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "dapo", "gspo", "cispo", "rloo", "decoupled_ppo"])
def test_same_loss_however_it_is_cut(name: str) -> None:
    objective = preset(name)
    policy = small_policy(torch.float64)
    judged = groups(objective)
    whole = gradient(policy, assemble(judged, objective, 1000, pack=False), objective, 10_000)
    assert whole[1].abs().max() > 1e-3
    backwards = list(reversed(judged))
    for order, pack, row_tokens, micro, width in [
        (judged, False, 1000, 1, 0),
        (judged, True, 1000, 10_000, 0),
        (judged, True, 14, 30, 0),
        (judged, False, 1000, 10_000, 10_000),  # attention costs nothing: all in one line
        (judged, True, 1000, 10_000, 10_000),
        (judged, True, 1000, 10_000, 1),  # attention costs more than all else
        (backwards, True, 1000, 40, 16),
        (backwards, False, 1000, 25, 16),
    ]:
        policy.width = width
        batch = assemble(order, objective, row_tokens, pack, width)
        loss, grads = gradient(policy, batch, objective, micro)
        assert loss == pytest.approx(whole[0], rel=1e-6)
        # Of the whole: the model itself takes norms and rotations in float32.
        assert float((grads - whole[1]).norm()) <= 1e-6 * float(whole[1].norm())


def test_chunks_of_positions_change_nothing() -> None:
    torch.manual_seed(0)
    hidden = torch.randn(37, 8, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(8, 20, dtype=torch.float64)
    targets = torch.randint(0, 20, (37,))
    results = []
    for chunk in (5, 37, 1000):
        logprobs, entropy = token_statistics(hidden, targets, lambda states: states @ weight, chunk)
        (grad,) = torch.autograd.grad((logprobs * torch.arange(37)).sum(), hidden)
        results.append((logprobs.detach(), entropy, grad))
    for other in results[1:]:
        for left, right in zip(results[0], other, strict=True):
            torch.testing.assert_close(left, right)
    assert not results[0][1].requires_grad


def test_micro_batches_stay_within_their_tokens() -> None:
    rows = assemble(groups(preset("grpo"), count=9), preset("grpo"), 1000, pack=False).rows
    cuts = micro_batches(rows, 40)
    assert sorted(map(id, (row for cut in cuts for row in cut))) == sorted(map(id, rows))
    assert all(len(cut) == 1 or len(cut) * max(row.length for row in cut) <= 40 for cut in cuts)
    assert len(cuts) < len(rows)


def test_a_shared_prompt_is_computed_once() -> None:
    judged = groups(preset("grpo"), count=1, size=4)
    prompt = judged[0].slots[0].trajectory.sequences[0]
    batch = assemble(judged, preset("grpo"), 1000)
    sampled = sum(slot.trajectory.sampled_tokens() for slot in judged[0].usable_slots())
    assert [row.length for row in batch.rows] == [int((prompt.loss_mask == 0).sum()) + sampled]
    micro = collate(batch.rows)
    assert micro.targets.numel() == sampled and micro.count == 4 and micro.mask is not None


@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=8),
    prefix=st.integers(1, 40),
    row_tokens=st.integers(1, 200),
    width=st.integers(0, 50),
)
def test_branches_join_where_it_costs_less(
    lengths: list[int], prefix: int, row_tokens: int, width: int
) -> None:
    first = np.arange(prefix, dtype=np.int32)
    branches = [
        Branch(np.full(n, i, np.int32), np.ones(n, bool), np.zeros(n, np.float32), attempt=i)
        for i, n in enumerate(lengths)
    ]
    rows = rows_of([(first, branch) for branch in branches], row_tokens, True, width)
    assert sorted(branch.attempt for row in rows for branch in row.branches) == list(range(len(lengths)))
    assert all(row.prefix.size == prefix for row in rows)
    assert all(len(row.branches) == 1 or row.length <= row_tokens for row in rows)
    apart = sum(causal(prefix + n, width) for n in lengths)
    cost = sum((masked if len(row.branches) > 1 else causal)(row.length, width) for row in rows)
    assert cost <= apart + 1e-6
    if not width and prefix + sum(lengths) <= row_tokens:
        assert len(rows) == 1


def test_long_answers_do_not_share_a_row_and_short_ones_do() -> None:
    """SmolLM2's width: two answers of 2,048 tokens behind 128, eight of 6 behind 30."""

    def rows(prefix: int, lengths: list[int]) -> int:
        pairs = [
            (
                np.arange(prefix, dtype=np.int32),
                Branch(np.zeros(n, np.int32), np.ones(n, bool), np.zeros(n, np.float32), attempt=i),
            )
            for i, n in enumerate(lengths)
        ]
        return len(rows_of(pairs, 8192, True, 576))

    assert (rows(128, [2048, 2048]), rows(30, [6] * 8)) == (2, 1)


@pytest.mark.parametrize(("lengths", "lines"), [([9, 1, 1, 1], 1), ([9, 9, 9, 9], 4)])
def test_rows_of_unlike_lengths_lie_in_one_line(lengths: list[int], lines: int) -> None:
    rows = [
        Row(
            np.arange(4, dtype=np.int32),
            (Branch(np.zeros(n, np.int32), np.ones(n, bool), np.zeros(n, np.float32), i),),
        )
        for i, n in enumerate(lengths)
    ]
    assert collate(rows, width=16).ids.shape[0] == lines
    assert collate(rows, width=0).ids.shape[0] == len(lengths)


def test_log_probabilities_are_those_of_the_whole_sequence() -> None:
    policy = small_policy(torch.float64)
    judged = groups(preset("grpo"))
    batch = assemble(judged, preset("grpo"), 1000)
    micro = collate(batch.rows)
    found, _ = policy.statistics(micro)
    expected = []
    for row in batch.rows:
        for branch in row.branches:
            whole = torch.tensor(np.concatenate([row.prefix, branch.ids]), dtype=torch.int64)
            logits = policy.model(input_ids=whole.unsqueeze(0)).logits[0]
            logprobs = torch.log_softmax(logits, -1)[:-1].gather(1, whole[1:, None]).squeeze(1)
            expected.append(logprobs[row.prefix.size - 1 :][torch.from_numpy(branch.mask)])
    torch.testing.assert_close(found, torch.cat(expected), rtol=1e-6, atol=1e-6)


def test_groups_without_signal_count_in_the_denominators_and_are_not_computed() -> None:
    objective = preset("dapo", dynamic_sampling=False)
    judged = groups(objective, count=2)
    flat = {
        i: FilledSlot(s.trajectory, reward(s.trajectory, 1.0), (), "") for i, s in judged[0].slots.items()
    }
    silent = judge("0-rl-0000009", flat, TERMS)
    policy = small_policy(torch.float64)
    alone = assemble(judged[1:], objective, 1000)
    both = assemble([silent, judged[1]], objective, 1000)
    assert len(both.rows) == len(alone.rows)
    share = alone.denominators.tokens / both.denominators.tokens
    assert share < 1
    loss, grads = gradient(policy, alone, objective, 1000)
    loss_both, grads_both = gradient(policy, both, objective, 1000)
    assert loss_both == pytest.approx(loss * share, rel=1e-9)
    assert float((grads_both - grads * share).norm()) <= 1e-6 * float(grads.norm())


def test_the_stop_token_counts_even_where_pad_is_the_same_id() -> None:
    stop = 0
    made = trajectory(sequences=(sequence([1, 2], [3, stop]),))
    other = trajectory(sample=1, sequences=(sequence([1, 2], [3, 4, 5, stop]),))
    judged = judge(
        "0-rl-0000000",
        {0: FilledSlot(made, reward(made, 1.0), (), ""), 1: FilledSlot(other, reward(other, 0.0), (), "")},
        TERMS,
    )
    micro = collate(assemble([judged], preset("grpo"), 1000, pack=False).rows)
    assert micro.targets.tolist().count(stop) == 2


def test_a_model_is_checked_before_it_is_trained() -> None:
    policy = small_policy()
    policy.packs = False
    check_model(policy)
    assert policy.packs
