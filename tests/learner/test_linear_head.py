"""A linear head in chunks: the numbers of the whole matrix, without the whole matrix."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from services.learner.objectives import linear_head
from services.learner.objectives.linear_head import Head, linear_statistics

VOCABULARY, WIDTH = 23, 8


def plain(hidden: Tensor, ids: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    logprobs = torch.log_softmax(torch.nn.functional.linear(hidden, weight, bias), -1)
    entropy = -(logprobs.exp() * logprobs).sum(-1)
    return logprobs.gather(-1, ids.unsqueeze(-1)).squeeze(-1), entropy


def inputs(n: int, biased: bool, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, list[Tensor]]:
    """(ids, slopes [2, n], leaves: hidden, weight and perhaps bias)."""
    torch.manual_seed(n)
    leaves = [torch.randn(n, WIDTH), 3 * torch.randn(VOCABULARY, WIDTH), torch.randn(VOCABULARY)]
    kept = [leaf.to(dtype).requires_grad_() for leaf in leaves[: 3 if biased else 2]]
    return torch.randint(0, VOCABULARY, (n,)), torch.randn(2, n, dtype=dtype), kept


def head_of(leaves: list[Tensor], positions: int, dtype: torch.dtype = torch.float64) -> Head:
    bias = leaves[2] if len(leaves) > 2 else None
    size = torch.float32.itemsize if dtype is torch.bfloat16 else dtype.itemsize
    return Head(leaves[1], bias, dtype, positions * VOCABULARY * size)


@given(
    n=st.integers(1, 40),
    positions=st.integers(1, 50),
    biased=st.booleans(),
    entropy_gradient=st.booleans(),
    cached=st.integers(1, 40),
)
def test_chunks_give_the_numbers_of_the_whole(
    n: int, positions: int, biased: bool, entropy_gradient: bool, cached: int
) -> None:
    ids, slopes, leaves = inputs(n, biased)
    bias = leaves[2] if biased else None
    expected, entropy = plain(leaves[0], ids, leaves[1], bias)
    loss = (slopes[0] * expected).sum() + ((slopes[1] * entropy).sum() if entropy_gradient else 0)
    wanted = torch.autograd.grad(loss, leaves)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(linear_head, "_CACHED", cached * VOCABULARY * 8)
        found, measured = linear_statistics(
            leaves[0], ids, head_of(leaves, positions), entropy_gradient=entropy_gradient
        )
        assert measured is not None and measured.requires_grad is entropy_gradient
        again = (slopes[0] * found).sum() + ((slopes[1] * measured).sum() if entropy_gradient else 0)
        grads = torch.autograd.grad(again, leaves)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(measured, entropy)
    torch.testing.assert_close(grads, wanted)


@pytest.mark.parametrize("positions", [5, 1000])
def test_a_graph_that_is_kept_gives_the_same_gradient_again(positions: int) -> None:
    ids, slopes, leaves = inputs(12, biased=True)
    found, _ = linear_statistics(leaves[0], ids, head_of(leaves, positions))
    loss = (slopes[0] * found).sum()
    first = torch.autograd.grad(loss, leaves, retain_graph=True)
    torch.testing.assert_close(torch.autograd.grad(loss, leaves), first)


def test_what_needs_no_gradient_gets_none() -> None:
    ids, slopes, (hidden, weight) = inputs(6, biased=False)
    found, entropy = linear_statistics(hidden, ids, head_of([hidden, weight.detach()], 2), entropy=False)
    assert entropy is None
    (grad,) = torch.autograd.grad((slopes[0] * found).sum(), hidden)
    assert grad.any()
    with torch.no_grad():
        frozen, _ = linear_statistics(hidden, ids, head_of([hidden, weight], 2))
    assert not frozen.requires_grad
    torch.testing.assert_close(frozen, found.detach())


def test_far_logits_stay_finite() -> None:
    hidden = torch.tensor([[1000.0], [-1000.0]], requires_grad=True)
    weight = torch.tensor([[1.0], [0.0], [-1.0]])
    ids = torch.tensor([0, 0])
    found, entropy = linear_statistics(
        hidden, ids, Head(weight, None, torch.float32, 12), entropy_gradient=True
    )
    assert entropy is not None
    (grad,) = torch.autograd.grad(found.sum() + entropy.sum(), hidden)
    assert found.tolist() == [0.0, -2000.0] and entropy.tolist() == [0.0, 0.0]
    assert grad.squeeze(1).tolist() == [0.0, 2.0]


@pytest.mark.parametrize("positions", [3, 64])
def test_bfloat16_multiplies_and_float32_reduces(positions: int) -> None:
    """As autocast does it: the same products, so the same numbers to the rounding of one sum."""
    ids, slopes, leaves = inputs(10, biased=False, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = torch.nn.functional.linear(leaves[0], leaves[1])
    expected = torch.log_softmax(logits.float(), -1).gather(-1, ids.unsqueeze(-1)).squeeze(-1)
    wanted = torch.autograd.grad((slopes[0] * expected).sum(), leaves)
    found, _ = linear_statistics(leaves[0], ids, head_of(leaves, positions, torch.bfloat16))
    assert found.dtype is torch.float32
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    for grad, other in zip(torch.autograd.grad((slopes[0] * found).sum(), leaves), wanted, strict=True):
        assert grad.dtype is torch.float32
        assert float((grad - other).norm()) <= 1e-2 * float(other.norm())


@pytest.mark.parametrize("n", [4, 32])
def test_no_array_of_logits_is_larger_than_its_limit(n: int) -> None:
    """Every array that an operation makes, forward and backward, is looked at."""
    ids, _, leaves = inputs(n, biased=False)
    largest = 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            for tensor in out if isinstance(out, tuple | list) else (out,):
                if (
                    isinstance(tensor, Tensor)
                    and tensor.shape[-1:] == (VOCABULARY,)
                    and tensor.data_ptr() != leaves[1].data_ptr()
                ):
                    largest = max(largest, tensor.numel() // VOCABULARY)
            return out

    with Watch():
        found, _ = linear_statistics(leaves[0], ids, head_of(leaves, 4), entropy_gradient=True)
        found.sum().backward()
    assert largest == 4
