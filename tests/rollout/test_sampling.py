"""Tokens and their log-probabilities: exact, of the sampled token, of the unscaled distribution."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from services.rollout.engines.sampling import inverse_cdf, sample


def _rows(n: int, temperature: float, top_p: float, uniform: list[float]) -> tuple[torch.Tensor, ...]:
    return (
        torch.full((n,), temperature),
        torch.full((n,), top_p),
        torch.tensor(uniform, dtype=torch.float64),
    )


@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("top_p", [1.0, 0.7])
def test_logprob_is_of_the_sampled_token_and_unscaled(temperature: float, top_p: float) -> None:
    torch.manual_seed(0)
    logits = torch.randn(64, 700) * 3
    ids, logprobs = sample(logits, *_rows(64, temperature, top_p, [(i + 0.5) / 64 for i in range(64)]))
    want = torch.log_softmax(logits.double(), -1).gather(-1, ids[:, None])[:, 0]
    assert torch.allclose(logprobs.double(), want, atol=1e-5)
    if temperature > 0:
        assert (ids != logits.argmax(-1)).any()
    else:
        assert torch.equal(ids, logits.argmax(-1))


def test_draws_follow_the_tempered_distribution() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0, -1.0]])
    n = 20_000
    uniform = [(i + 0.5) / n for i in range(n)]
    ids, _ = sample(logits.expand(n, -1).contiguous(), *_rows(n, 0.5, 1.0, uniform))
    share = torch.bincount(ids, minlength=4).double() / n
    assert torch.allclose(share, torch.softmax(logits[0].double() / 0.5, -1), atol=1e-3)


def test_top_p_keeps_the_smallest_set_that_reaches_it() -> None:
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.15, 0.05]]))
    n = 1000
    uniform = [i / n for i in range(n)]
    for top_p, kept in ((0.4, {0}), (0.6, {0, 1}), (0.9, {0, 1, 2}), (1.0, {0, 1, 2, 3})):
        ids, _ = sample(logits.expand(n, -1).contiguous(), *_rows(n, 1.0, top_p, uniform))
        assert set(ids.tolist()) == kept


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_inverse_cdf_finds_the_interval(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 900))
    seed = data.draw(st.integers(0, 2**32 - 1))
    generator = np.random.default_rng(seed)
    weights = generator.random(size).astype(np.float32) * (generator.random(size) < 0.5)
    weights[generator.integers(size)] = 1.0
    uniform = data.draw(st.one_of(st.floats(0, 1, exclude_max=True), st.just(0.0), st.just(1 - 2**-53)))
    got = int(inverse_cdf(torch.from_numpy(weights)[None], torch.tensor([uniform], dtype=torch.float64))[0])
    ends = np.cumsum(weights.astype(np.float64))
    assert weights[got] > 0
    assert ends[got] - weights[got] - 1e-9 <= uniform * ends[-1] <= ends[got] + 1e-9


def test_logits_that_are_no_numbers_show() -> None:
    logits = torch.zeros(2, 300)
    logits[1, 7] = float("nan")
    _, logprobs = sample(logits, *_rows(2, 1.0, 1.0, [0.5, 0.5]))
    assert torch.isfinite(logprobs).tolist() == [True, False]
