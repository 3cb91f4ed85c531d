"""Log-probabilities and entropies of a linear head, from hidden states, without the [tokens × vocabulary] matrix.

Invariant: no array of logits, in the forward or in the backward pass, is larger than `limit` bytes in the dtype that
it is reduced in. Logits that fit it whole are kept for the backward pass, which turns them into their own gradient in
place; of more than that each chunk is computed again there. Both give the same gradient.

One pass keeps a running maximum out of it (the whole row is at hand): log p = z − max z − log Σ exp(z − max z), and
∂log p/∂z = onehot − p, ∂H/∂z = −p·(log p + H).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

_CACHED = 8 << 20
"""Bytes of logits reduced together on a processor, so that they and the two arrays made of them stay in its cache:
75 MiB were reduced 3.4 times faster than at once."""
_HALF = {torch.bfloat16, torch.float16}


@dataclass(frozen=True, slots=True)
class Head:
    """logits = states @ weightᵀ + bias, multiplied in `dtype`, reduced in float32 at least; at most `limit` bytes of
    them at a time. weight [vocabulary, width]; bias [vocabulary] or None."""

    weight: Tensor
    bias: Tensor | None
    dtype: torch.dtype
    limit: int

    @property
    def wide(self) -> torch.dtype:
        return torch.float32 if self.dtype in _HALF else self.dtype

    @property
    def positions(self) -> int:
        """Whose logits are held together."""
        return max(1, self.limit // (self.weight.shape[0] * self.wide.itemsize))

    def logits(self, states: Tensor, weight: Tensor, out: Tensor) -> Tensor:
        """[c, vocabulary] of `states` [c, width], in `out`; `weight` is the head's own in `dtype`."""
        if self.dtype is self.wide:
            torch.mm(states, weight.t(), out=out)
        else:
            out.copy_(torch.mm(states, weight.t()))
        return out if self.bias is None else out.add_(self.bias)

    def buffer(self, n: int) -> Tensor:
        size = (min(n, self.positions), self.weight.shape[0])
        return torch.empty(size, dtype=self.wide, device=self.weight.device)


def linear_statistics(
    hidden: Tensor, ids: Tensor, head: Head, entropy: bool = True, entropy_gradient: bool = False
) -> tuple[Tensor, Tensor | None]:
    """(log-probability [n], entropy [n] in nats or None) of `ids` int64[n] under the head at `hidden` [n, width].

    The log-probability has a gradient for states, weight and bias; the entropy only where `entropy_gradient` asks.
    """
    asked = _Asked(head, entropy or entropy_gradient, entropy_gradient, torch.is_grad_enabled())
    found: tuple[Tensor, Tensor | None] = _Statistics.apply(hidden, head.weight, head.bias, ids, asked)  # type: ignore[no-untyped-call]
    return found


@dataclass(frozen=True, slots=True)
class _Asked:
    head: Head
    entropy: bool
    entropy_gradient: bool
    recorded: bool
    """Whether a backward pass may follow; inside a `Function` nothing tells."""


class _Statistics(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, _bias: Tensor | None, ids: Tensor, asked: _Asked
    ) -> tuple[Tensor, Tensor | None]:
        n, head = hidden.shape[0], asked.head
        logprobs, normaliser = (hidden.new_empty(n, dtype=head.wide) for _ in range(2))
        entropies = hidden.new_empty(n, dtype=head.wide) if asked.entropy else None
        cast, buffer = weight.to(head.dtype), head.buffer(n)
        for part in _chunks(n, head.positions):
            logits = head.logits(hidden[part].to(head.dtype), cast, buffer[: part.stop - part.start])
            into = None if entropies is None else entropies[part]
            _reduce(logits, ids[part], logprobs[part], normaliser[part], into)
        ctx.asked = asked
        needed = asked.recorded and any(ctx.needs_input_grad)
        ctx.kept = buffer if needed and n <= head.positions else None
        saved = [entropies] if entropies is not None and asked.entropy_gradient else []
        ctx.save_for_backward(hidden, ids, normaliser, *saved)
        if entropies is not None and not asked.entropy_gradient:
            ctx.mark_non_differentiable(entropies)
        ctx.set_materialize_grads(False)
        return logprobs, entropies

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor | None, entropy_slope: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, ids, normaliser, *rest = ctx.saved_tensors
        head: Head = ctx.asked.head
        # What is written over is gone: a second pass through a retained graph computes it again.
        kept, ctx.kept = ctx.kept, None
        entropies = rest[0] if rest and entropy_slope is not None else None
        slopes = hidden.new_zeros(ids.shape, dtype=head.wide) if slope is None else slope
        to_hidden, to_weight, to_bias = ctx.needs_input_grad[:3]
        cast = head.weight.detach().to(head.dtype)
        hidden_grad = torch.empty_like(hidden) if to_hidden else None
        weight_grad = torch.zeros_like(head.weight, dtype=head.wide) if to_weight else None
        bias_grad = (
            torch.zeros_like(head.bias, dtype=head.wide) if to_bias and head.bias is not None else None
        )
        buffer = head.buffer(ids.shape[0]) if kept is None else kept
        for part in _chunks(ids.shape[0], head.positions):
            states = hidden[part].to(head.dtype)
            grad = buffer[: part.stop - part.start]
            if kept is None:
                head.logits(states, cast, grad)
            entropy = (
                None if entropies is None or entropy_slope is None else (entropies[part], entropy_slope[part])
            )
            _differentiate(grad, ids[part], normaliser[part], slopes[part], entropy)
            if bias_grad is not None:
                bias_grad += grad.sum(0)
            narrow = grad.to(head.dtype)
            if hidden_grad is not None:
                hidden_grad[part] = torch.mm(narrow, cast)
            if weight_grad is not None:
                _add_product(weight_grad, narrow.t(), states)
        return (
            hidden_grad,
            None if weight_grad is None else weight_grad.to(head.weight.dtype),
            None if bias_grad is None or head.bias is None else bias_grad.to(head.bias.dtype),
            None,
            None,
        )


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """total += left @ right, in the dtype of `total` where the product is one of a narrower one."""
    if left.dtype is total.dtype:
        total.addmm_(left, right)
    else:
        total += torch.mm(left, right)


def _chunks(n: int, size: int) -> Iterator[slice]:
    return (slice(at, min(n, at + size)) for at in range(0, n, size))


def _blocks(logits: Tensor) -> Iterator[slice]:
    """An accelerator reduces all at once; its launches cost more than its memory."""
    n, vocabulary = logits.shape
    rows = n if logits.is_cuda else max(1, _CACHED // (vocabulary * logits.itemsize))
    return _chunks(n, max(1, rows))


def _reduce(
    logits: Tensor, ids: Tensor, logprobs: Tensor, normaliser: Tensor, entropies: Tensor | None
) -> None:
    """Fills [c] log-probabilities, log Σ exp z and entropies from `logits` [c, vocabulary], which stay as they are."""
    for part in _blocks(logits):
        block = logits[part]
        highest = block.amax(-1, keepdim=True)
        shifted = block - highest
        picked = shifted.gather(-1, ids[part].unsqueeze(-1)).squeeze(-1)
        weights = torch.exp(shifted)
        total = weights.sum(-1)
        log_total = total.log()
        logprobs[part] = picked - log_total
        normaliser[part] = highest.squeeze(-1) + log_total
        if entropies is not None:
            entropies[part] = log_total - weights.mul_(shifted).sum(-1) / total


def _differentiate(
    logits: Tensor,
    ids: Tensor,
    normaliser: Tensor,
    slope: Tensor,
    entropy: tuple[Tensor, Tensor] | None,
) -> None:
    """Writes ∂loss/∂logits over `logits` [c, vocabulary]. `entropy`: ([c] entropies, [c] ∂loss/∂entropy)."""
    for part in _blocks(logits):
        block = logits[part]
        block.sub_(normaliser[part].unsqueeze(-1))
        factor = slope[part].unsqueeze(-1)
        if entropy is None:
            block.exp_().mul_(-factor)
        else:
            value, steep = (each[part].unsqueeze(-1) for each in entropy)
            towards = factor + steep * (block + value)
            block.exp_().mul_(-towards)
        block.scatter_add_(-1, ids[part].unsqueeze(-1), factor.to(block.dtype))
