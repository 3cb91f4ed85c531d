"""Attention by blocks gives the numbers of rows in lines of their own, or is not used.

A processor has the kernel's forward pass alone. For gradients its place is taken by attention under the mask that the
same blocks spell out: layout, blocks and what they say of who sees whom are ours; the kernel's own gradient is torch's.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from learner_models import small_policy
from test_learner_batching import gradient, groups
from torch import Tensor
from torch.nn.attention import flex_attention as flex
from torch.nn.functional import scaled_dot_product_attention

from services.learner.attention import kernel
from services.learner.attention.choice import attend_by_blocks
from services.learner.attention.spans import BLOCK
from services.learner.batching import assemble
from services.learner.collate import collate
from services.learner.model import PolicyModel, load_policy
from services.learner.objectives.presets import preset
from shared.errors import ConfigError
from shared.settings import LearnerSettings, ModelSettings

GRPO = preset("grpo", kl_coefficient=0.1)


def spelt_out(scale: float = 1.0) -> Callable[..., Tensor]:
    """Attention under the mask of the blocks, with its gradient; `scale`: of the queries, where it is to be wrong."""

    def attend(query: Tensor, key: Tensor, value: Tensor, *, block_mask: Any, **how: Any) -> Tensor:
        b, _, t, _ = query.shape
        mask = flex.create_mask(block_mask.mask_mod, b, None, t, t, device="cpu")
        return scaled_dot_product_attention(query * scale, key, value, attn_mask=mask, **how)

    return attend


@pytest.fixture
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "attend", lambda device: spelt_out())


def by_blocks(policy: PolicyModel) -> PolicyModel:
    kernel.use_in(policy.model)
    policy.blocks = True
    return policy


def test_log_probabilities_of_the_kernel_are_those_of_padded_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    # Otherwise it is traced first, which takes seconds; what is computed is the same.
    monkeypatch.setattr(flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True, raising=False)
    judged = groups(GRPO)
    padded = collate(assemble(judged, GRPO, 1000, pack=False).rows)
    expected = small_policy().logprobs(padded)
    packed = collate(assemble(judged, GRPO, 1000).rows, blocks=True)
    assert padded.ids.shape[0] > 8 and packed.ids.shape == (1, 2 * BLOCK) and packed.mask is None
    found = by_blocks(small_policy()).logprobs(packed)
    # Short branches come first in a packed row, so the same tokens are in another order.
    for attempt in range(int(padded.attempts.max()) + 1):
        for order in (0, 1):
            here, there = ((batch.attempts == attempt) & (batch.order == order) for batch in (packed, padded))
            torch.testing.assert_close(found[here], expected[there], rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("exact")
def test_the_gradient_is_that_of_padded_rows() -> None:
    judged = groups(GRPO)
    loss, whole = gradient(
        small_policy(torch.float64), assemble(judged, GRPO, 1000, pack=False), GRPO, 10_000
    )
    for row_tokens, micro in ((1000, 10_000), (14, 30), (1000, 1)):
        found, grads = gradient(
            by_blocks(small_policy(torch.float64)), assemble(judged, GRPO, row_tokens), GRPO, micro
        )
        assert found == pytest.approx(loss, rel=1e-6)
        assert float((grads - whole).norm()) <= 1e-6 * float(whole.norm())


@pytest.mark.usefixtures("exact")
def test_a_line_longer_than_a_block_hides_what_it_should() -> None:
    """Whole blocks in which nobody sees anybody, and rows that end within one."""
    judged = groups(GRPO, count=30)
    rows = assemble(judged, GRPO, 1000).rows
    packed, masked = collate(rows, blocks=True), collate(rows, width=10_000)
    assert packed.ids.shape[1] >= 2 * BLOCK and packed.ids.shape[1] % BLOCK == 0
    found, expected = (
        policy.statistics(batch)[0]
        for policy, batch in ((by_blocks(small_policy()), packed), (small_policy(), masked))
    )
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("exact")
def test_what_gives_the_numbers_of_a_mask_is_used() -> None:
    policy = small_policy()
    assert attend_by_blocks(policy) == ""
    assert policy.attention == "blocks" and policy.packing_width == 0
    assert all(parameter.grad is None for parameter in policy.model.parameters())
    twin = policy.frozen()
    assert isinstance(twin, PolicyModel) and twin.blocks


def test_what_gives_other_numbers_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "attend", lambda device: spelt_out(1.1))
    policy = small_policy()
    assert "it differs from a mask by" in attend_by_blocks(policy)
    assert policy.attention == "mask" and policy.packing_width == policy.width
    assert policy.model.config._attn_implementation == "sdpa"


def test_a_processor_has_no_gradient_of_it(tmp_path: Path) -> None:
    small_policy().model.save_pretrained(tmp_path)
    model = ModelSettings(path=str(tmp_path))
    assert load_policy(model, LearnerSettings(device="cpu")).attention == "mask"
    with pytest.raises(ConfigError, match=r'learner.attention is "blocks" and cpu cannot attend so.*"auto"'):
        load_policy(model, LearnerSettings(device="cpu", attention="blocks"))
