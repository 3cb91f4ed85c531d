"""Attempts as rows of tokens: those that begin with the same tokens share them where that is cheaper.

Invariant: every branch is in exactly one row, behind exactly the tokens that its attempt began with.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from services.learner.attention_cost import causal, masked
from shared.contracts import Sequence as TokenSequence

Int32 = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Branch:
    """What follows the prefix in one sequence, m tokens: the first one was sampled.

    ids int32[m], mask bool[m], logprobs float32[m] of the sampler.
    """

    ids: Int32
    mask: NDArray[np.bool_]
    logprobs: NDArray[np.float32]
    attempt: int
    order: int = 0
    """Which of its attempt's sequences it is."""


@dataclass(frozen=True, slots=True)
class Row:
    """A prefix of at least one token, and the branches that continue it."""

    prefix: Int32
    branches: tuple[Branch, ...]

    @property
    def length(self) -> int:
        return self.prefix.size + sum(branch.ids.size for branch in self.branches)


def branch_of(sequence: TokenSequence, attempt: int, order: int) -> tuple[Int32, Branch] | None:
    """(prefix, branch) split before the first sampled token; None for a sequence without one."""
    mask = sequence.loss_mask.astype(bool)
    if not mask.any():
        return None
    start = int(mask.argmax())
    # Nothing after the last sampled token is predicted from, so nothing after it is computed.
    end = mask.size - int(mask[::-1].argmax())
    ids = sequence.token_ids
    return ids[:start], Branch(ids[start:end], mask[start:end], sequence.logprobs[start:end], attempt, order)


def rows_of(pairs: Iterable[tuple[Int32, Branch]], row_tokens: int, pack: bool, width: int = 0) -> list[Row]:
    """Rows of at most `row_tokens` where one branch alone is not longer. A branch joins the row before it where that
    costs less than computing the prefix again; `width` is the model's (see `attention_cost`), 0 always joins."""
    if not pack:
        return [Row(prefix, (branch,)) for prefix, branch in pairs]
    by_prefix: dict[bytes, tuple[Int32, list[Branch]]] = {}
    for prefix, branch in pairs:
        by_prefix.setdefault(prefix.tobytes(), (prefix, []))[1].append(branch)
    rows = []
    for prefix, branches in by_prefix.values():
        # Short ones first: where a long branch does not pay to join, the short ones before it still have.
        held: list[Branch] = []
        size = prefix.size
        for branch in sorted(branches, key=lambda branch: branch.ids.size):
            joined = size + branch.ids.size
            apart = (masked if len(held) > 1 else causal)(size, width) + causal(
                prefix.size + branch.ids.size, width
            )
            if held and (joined > row_tokens or masked(joined, width) > apart):
                rows.append(Row(prefix, tuple(held)))
                held, size = [], prefix.size
            held.append(branch)
            size += branch.ids.size
        rows.append(Row(prefix, tuple(held)))
    return rows
