"""From rows to the tensors of a micro-batch.

Invariant: a token sees the tokens of its own attempt before it and nothing else, however the rows are laid out: each
in a line of its own, padded on the right, or all behind one another in one line, each blind to the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from services.learner.attention.spans import BLOCK, Spans
from services.learner.attention_cost import causal, masked
from services.learner.rows import Branch, Row

PADDING = -1
"""Segment of padding. Every prefix and every branch of a micro-batch has a segment of its own."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Tensors of b lines of t tokens, with n sampled tokens in `count` sequences.

    ids, positions int64[b, t]; mask bool[b, 1, t, t], or spans where blocks are attended; neither where causal attention
    is right as it is;
    predictors int64[n]: the flat position (in b·t) whose hidden state predicts each sampled token;
    targets int64[n]; sampler float32[n]; attempts, rows, order int64[n] (order: of the sequence in its attempt).
    """

    ids: Tensor
    positions: Tensor
    mask: Tensor | None
    predictors: Tensor
    targets: Tensor
    sampler: Tensor
    attempts: Tensor
    rows: Tensor
    order: Tensor
    count: int
    spans: Spans | None = None


def collate(
    rows: Sequence[Row], device: torch.device | str = "cpu", width: int = 0, *, blocks: bool = False
) -> MicroBatch:
    """The tensors of some rows, in whichever layout costs less with a model of this `width`; 0: a line for each. `blocks`:
    what a line hides costs nothing."""
    joined = _fewer_blocks(rows) if blocks else _cheaper_joined(rows, width)
    hides = joined or _branching(rows)
    length = sum(row.length for row in rows) if joined else max(row.length for row in rows)
    if blocks and hides:
        length = _whole_blocks(length)
    shape = (1 if joined else len(rows), length)
    ids = np.zeros(shape, dtype=np.int64)
    # Padding goes on counting: a position that starts again would be taken for a second sequence in the row, and the
    # model would make a mask of [b, t, t] for it.
    positions = np.tile(np.arange(shape[1], dtype=np.int64), (shape[0], 1))
    segments, parents = (np.full(shape, PADDING, dtype=np.int32) for _ in range(2))
    flat_ids, flat_positions, flat_segments, flat_parents = (
        array.reshape(-1) for array in (ids, positions, segments, parents)
    )
    predictors, targets, sampler, attempts, sequences, orders = [], [], [], [], [], []
    count = segment = at = 0
    for number, row in enumerate(rows):
        at = at if joined else number * length
        start, p, prefix = at, row.prefix.size, segment
        flat_parents[at : at + row.length] = prefix
        flat_ids[at : at + p], flat_segments[at : at + p] = row.prefix, prefix
        flat_positions[at : at + p] = np.arange(p)
        at += p
        for branch in row.branches:
            segment += 1
            m = branch.ids.size
            flat_ids[at : at + m], flat_segments[at : at + m] = branch.ids, segment
            flat_positions[at : at + m] = np.arange(p, p + m)
            # A token is predicted by the one before it; the first of a branch by the prefix's last.
            before = np.concatenate(([start + p - 1], np.arange(at, at + m - 1)))
            predictors.append(before[branch.mask])
            targets.append(branch.ids[branch.mask])
            sampler.append(branch.logprobs[branch.mask])
            sampled = int(branch.mask.sum())
            attempts.append(np.full(sampled, branch.attempt))
            sequences.append(np.full(sampled, count))
            orders.append(np.full(sampled, branch.order))
            count += 1
            at += m
        segment += 1

    def tensor(parts: Sequence[NDArray[Any]], dtype: torch.dtype) -> Tensor:
        return torch.from_numpy(np.concatenate(parts)).to(device=device, dtype=dtype)

    spans = Spans(*(torch.from_numpy(array).to(device) for array in (segments, parents))) if hides else None
    return MicroBatch(
        ids=torch.from_numpy(ids).to(device),
        positions=torch.from_numpy(positions).to(device),
        mask=None if spans is None or blocks else spans.mask(),
        predictors=tensor(predictors, torch.int64),
        targets=tensor(targets, torch.int64),
        sampler=tensor(sampler, torch.float32),
        attempts=tensor(attempts, torch.int64),
        rows=tensor(sequences, torch.int64),
        order=tensor(orders, torch.int64),
        count=count,
        spans=spans if blocks else None,
    )


def idle_micro_batch(device: torch.device | str = "cpu") -> MicroBatch:
    """Two tokens that are nobody's, for a rank that must take part in a pass and has no rows left."""
    token = np.zeros(1, dtype=np.int32)
    branch = Branch(token, np.ones(1, dtype=np.bool_), np.zeros(1, dtype=np.float32), attempt=0)
    return collate([Row(token, (branch,))], device)


def _branching(rows: Sequence[Row]) -> bool:
    return any(len(row.branches) > 1 for row in rows)


def _cheaper_joined(rows: Sequence[Row], width: int) -> bool:
    """A line of everything has no padding, and attention over all of it."""
    if not width or len(rows) == 1:
        return False
    one = masked if _branching(rows) else causal
    apart = len(rows) * one(max(row.length for row in rows), width)
    return masked(sum(row.length for row in rows), width) < apart


def _fewer_blocks(rows: Sequence[Row]) -> bool:
    apart = len(rows) * max(row.length for row in rows)
    return len(rows) > 1 and _whole_blocks(sum(row.length for row in rows)) < apart


def _whole_blocks(length: int) -> int:
    return -(-length // BLOCK) * BLOCK
