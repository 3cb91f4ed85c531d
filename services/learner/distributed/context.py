"""Long sequences over several ranks: each holds a part of every row's tokens and sees the keys and values of all.

Invariant: the same numbers as on one rank. Each rank has one chunk from a row's front and the one at the same distance
from its end, so causal attention costs all the same. Keys and values are gathered whole in every layer (as in
arXiv 2407.21783, section 3.3.2) rather than passed around a ring: that takes any mask (shared prompts are a tree), and
with grouped queries they are a small part of the activations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from services.learner.attention.registry import as_before
from services.learner.collate import MicroBatch

ATTENTION = "temper_context"
"""The name under which the model is told to use `attention`."""

_ALL_GATHER: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_REDUCE_SCATTER: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
"""torch 2.13 renamed them; older ones know the old names alone."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How t tokens of a row, padded to T, lie on `ranks` ranks.

    columns int64[T / ranks]: which of the T columns are this rank's. order int64[T]: where each column is among all
    ranks' columns one after another.
    """

    width: int
    columns: Tensor
    order: Tensor

    @staticmethod
    def of(tokens: int, rank: int, ranks: int, device: torch.device) -> Layout:
        chunk = -(-tokens // (2 * ranks))
        chunks = torch.arange(2 * ranks * chunk, device=device).view(2 * ranks, chunk)
        held = [torch.cat([chunks[r], chunks[2 * ranks - 1 - r]]) for r in range(ranks)]
        return Layout(chunks.numel(), held[rank], torch.argsort(torch.cat(held)))


class Context:
    """The ranks that share rows. `calls` counts layers that came here."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        self.rank = dist.get_rank(group)
        self.ranks = dist.get_world_size(group)
        self.calls = 0

    def cut(self, batch: MicroBatch) -> tuple[MicroBatch, Spread, Tensor]:
        """(this rank's part of a micro-batch, how it is spread, int64[m] which of the n sampled tokens it predicts).

        The part predicts one token more than it should, its first, so that no rank has nothing to compute.
        """
        tokens = batch.ids.shape[1]
        layout = Layout.of(tokens, self.rank, self.ranks, batch.ids.device)
        more = layout.width - tokens
        place = torch.full((layout.width,), -1, dtype=torch.int64, device=batch.ids.device)
        place[layout.columns] = torch.arange(layout.columns.numel(), device=batch.ids.device)
        own = place[batch.predictors % tokens]
        mine = torch.nonzero(own >= 0).squeeze(1)
        predictors = (batch.predictors // tokens * layout.columns.numel() + own)[mine]
        part = replace(
            batch,
            ids=pad(batch.ids, (0, more))[:, layout.columns],
            positions=_counted_on(batch.positions, more)[:, layout.columns],
            mask=None,
            predictors=torch.cat([predictors.new_zeros(1), predictors]),
            targets=torch.cat([batch.targets.new_zeros(1), batch.targets[mine]]),
        )
        mask = None if batch.mask is None else _widened(batch.mask, more)[:, :, layout.columns]
        return part, Spread(self, layout, mask), mine

    def whole(self, values: Tensor, mine: Tensor, count: int) -> Tensor:
        """[count] from each rank's own `values` [m] at `mine`; its gradient goes back to the rank that made it."""
        found: Tensor = _Whole.apply(values, mine, count, self.group)  # type: ignore[no-untyped-call]
        return found


@dataclass(frozen=True, slots=True)
class Spread:
    """Goes with one forward pass to every attention layer. mask bool[b, 1, T / ranks, T], or None: causal."""

    context: Context
    layout: Layout
    mask: Tensor | None

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scale: float | None) -> Tensor:
        """[b, heads, T / ranks, d] of this rank's queries over the keys and values [b, heads, T / ranks, d] of all."""
        self.context.calls += 1
        both: Tensor = _Gathered.apply(torch.cat([key, value], dim=-1), self.context.group)  # type: ignore[no-untyped-call]
        both = both.index_select(2, self.layout.order)
        # Heads that share keys and values get their copies here, after the wire.
        both = both.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
        keys, values = torch.split(both, [key.shape[-1], value.shape[-1]], dim=-1)
        if self.mask is not None:
            return scaled_dot_product_attention(query, keys, values, attn_mask=self.mask, scale=scale)
        halves: Sequence[Tensor] = query.chunk(2, dim=2)
        columns = self.layout.columns.chunk(2)
        parts = []
        for half, own in zip(halves, columns, strict=True):
            end = int(own[-1]) + 1  # nothing behind a chunk is seen from it
            seen = torch.arange(end, device=own.device) <= own.unsqueeze(1)
            parts.append(
                scaled_dot_product_attention(
                    half, keys[:, :, :end], values[:, :, :end], attn_mask=seen, scale=scale
                )
            )
        return torch.cat(parts, dim=2)


def attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    spread: Spread | None = None,
    **how: Any,
) -> tuple[Tensor, None]:
    """As transformers' attention functions are called; without `spread` its own for SDPA."""
    if spread is None:
        return as_before(module, query, key, value, attention_mask, **how)
    attended = spread.attend(query, key, value, how.get("scaling"))
    return attended.transpose(1, 2).contiguous(), None


def _counted_on(positions: Tensor, more: int) -> Tensor:
    """[b, t + more]: padding goes on counting."""
    if not more:
        return positions
    steps = torch.arange(1, more + 1, device=positions.device)
    return torch.cat([positions, positions[:, -1:] + steps], dim=1)


def _widened(mask: Tensor, more: int) -> Tensor:
    """bool[b, 1, t + more, t + more]: padding sees itself, as a softmax over nothing is no number."""
    wide = pad(mask, (0, more, 0, more))
    end = wide.shape[-1]
    for column in range(end - more, end):
        wide[:, :, column, column] = True
    return wide


class _Gathered(torch.autograd.Function):
    """[b, h, T, d] of all ranks' [b, h, T / ranks, d], one rank after another; gradients are summed where they came
    from, as every rank has used every part."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        first = own.movedim(2, 0).contiguous()
        ranks = dist.get_world_size(group)
        every = first.new_empty(ranks * first.shape[0], *first.shape[1:])
        _ALL_GATHER(every, first, group=group)
        return every.movedim(0, 2)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        every = gradients[0].movedim(2, 0).contiguous()
        ranks = dist.get_world_size(ctx.group)
        own = every.new_empty(every.shape[0] // ranks, *every.shape[1:])
        _REDUCE_SCATTER(own, every, group=ctx.group)
        return own.movedim(0, 2), None


class _Whole(torch.autograd.Function):
    """See `Context.whole`. Every rank goes on to compute the same loss of it, so the gradient is taken once: here."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, mine: Tensor, count: int, group: dist.ProcessGroup) -> Tensor:
        ctx.save_for_backward(mine)
        every = values.new_zeros(count).index_copy(0, mine, values)
        dist.all_reduce(every, group=group)
        return every

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        (mine,) = ctx.saved_tensors
        return gradients[0].index_select(0, mine), None, None, None
