"""From judged groups to micro-batches of tensors.

Invariant: the loss of a batch does not depend on how it is cut. Attempts of a group that begin with the same
tokens are laid into one row: the shared prompt once, every continuation behind it, each blind to the others.
Rows are padded on the right only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from services.learner.balance import cut_evenly
from services.learner.intake.groups import JudgedGroup, shaped_reward
from services.learner.objectives.advantages import whiten
from services.learner.objectives.aggregation import Denominators, token_weight
from services.learner.objectives.presets import Objective
from shared.contracts import Sequence as TokenSequence

Int32 = NDArray[np.int32]
PADDING = -1
"""Segment of padding; the shared prefix is segment 0, continuations count from 1."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """What the loss needs to know of one attempt."""

    trajectory_id: str
    advantage: float
    weight: float
    """Of each of its sampled tokens, from the batch's denominators."""
    kl: bool
    """Whether a KL or entropy term may act on it."""
    reward: float = 0.0
    """What the advantage was made of; 0 for a demonstration."""
    group: int = 0
    """Which of the batch's groups it belongs to."""
    tokens: int = 0
    """Sampled ones."""


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


@dataclass(frozen=True, slots=True)
class Pair:
    """Two answers to one prompt, as attempts; their rows are never cut apart."""

    chosen: int
    rejected: int
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Batch:
    """An optimizer step's data. `attempts[i]` is what `Branch.attempt == i` refers to."""

    rows: tuple[Row, ...]
    attempts: tuple[Attempt, ...]
    denominators: Denominators
    pairs: tuple[Pair, ...] = ()
    """Of a preference objective; together they hold all rows."""
    demonstrated: bool = False
    """Nobody sampled its tokens: the sampler's log-probabilities mean nothing."""

    def cuts(self, padded_tokens: int) -> list[list[Row]]:
        """The rows in micro-batches."""
        if self.pairs:
            return _cut([pair.rows for pair in self.pairs], padded_tokens)
        return micro_batches(self.rows, padded_tokens)


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Tensors of b rows padded to t tokens, with n sampled tokens in `count` sequences.

    ids, positions int64[b, t]; mask bool[b, 1, t, t], or None where causal attention is right as it is;
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


def assemble(
    groups: Sequence[JudgedGroup], objective: Objective, row_tokens: int, pack: bool = True
) -> Batch:
    """The batch of these groups. Groups without signal count in the denominators and have no rows, unless the
    objective wants its KL term on them. `row_tokens` bounds a packed row."""
    slots = [slot for group in groups for slot in group.usable_slots()]
    lengths = [slot.trajectory.sampled_tokens() for slot in slots]
    limit = max((slot.trajectory.sampling.max_tokens for slot in slots), default=1)
    denominators = Denominators(sum(lengths), len(slots), objective.length_constant or limit)
    kl_everywhere = objective.kl_on_zero_signal and objective.kl_coefficient > 0
    attempts: list[Attempt] = []
    rows: list[Row] = []
    for number, group in enumerate(groups):
        if not group.signal and not kl_everywhere:
            continue
        branches = []
        for index in group.usable:
            trajectory = group.slots[index].trajectory
            tokens = trajectory.sampled_tokens()
            attempts.append(
                Attempt(
                    trajectory_id=trajectory.trajectory_id,
                    advantage=group.advantages[index],
                    weight=token_weight(objective.aggregation, tokens, denominators),
                    kl=group.signal or kl_everywhere,
                    reward=shaped_reward(group.slots[index], objective)
                    if objective.kind == "policy"
                    else 0.0,
                    group=number,
                    tokens=tokens,
                )
            )
            branches += [
                branch_of(sequence, len(attempts) - 1, order)
                for order, sequence in enumerate(trajectory.sequences)
            ]
        rows += rows_of([pair for pair in branches if pair is not None], row_tokens, pack)
    if objective.batch_norm != "none":
        attempts = _normalised(attempts, denominators, objective, kl_everywhere)
    return Batch(tuple(rows), tuple(attempts), denominators, demonstrated=objective.kind == "imitation")


def silent_mass(attempts: Sequence[Attempt], batch: Denominators, objective: Objective) -> float:
    """What the batch holds beyond these attempts, in the unit that its normalisation counts."""
    if objective.batch_norm == "tokens":
        return batch.tokens - sum(attempt.tokens for attempt in attempts)
    return batch.attempts - len(attempts)


def _normalised(
    attempts: list[Attempt], batch: Denominators, objective: Objective, kl_everywhere: bool
) -> list[Attempt]:
    """Advantages over the whole batch; where they are all zero nothing has signal, and no KL term acts either."""
    values = whiten(
        [attempt.advantage for attempt in attempts],
        [float(attempt.tokens if objective.batch_norm == "tokens" else 1) for attempt in attempts],
        objective.advantage_epsilon,
        silent_mass(attempts, batch, objective),
    )
    acts = kl_everywhere or bool(values.any())
    return [
        replace(attempt, advantage=value, kl=attempt.kl and acts)
        for attempt, value in zip(attempts, values.tolist(), strict=True)
    ]


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


def rows_of(pairs: Iterable[tuple[Int32, Branch]], row_tokens: int, pack: bool) -> list[Row]:
    if not pack:
        return [Row(prefix, (branch,)) for prefix, branch in pairs]
    by_prefix: dict[bytes, tuple[Int32, list[Branch]]] = {}
    for prefix, branch in pairs:
        by_prefix.setdefault(prefix.tobytes(), (prefix, []))[1].append(branch)
    rows = []
    for prefix, branches in by_prefix.values():
        held: list[Branch] = []
        for branch in branches:
            size = prefix.size + sum(other.ids.size for other in held)
            if held and size + branch.ids.size > row_tokens:
                rows.append(Row(prefix, tuple(held)))
                held = []
            held.append(branch)
        rows.append(Row(prefix, tuple(held)))
    return rows


def micro_batches(rows: Sequence[Row], padded_tokens: int) -> list[list[Row]]:
    """Rows sorted by length and cut evenly so that rows × longest stays within `padded_tokens` (a longer row is
    alone)."""
    return _cut([(row,) for row in rows], padded_tokens)


def _cut(units: Iterable[tuple[Row, ...]], padded_tokens: int) -> list[list[Row]]:
    """As `micro_batches`, of rows that belong together."""
    kept = list(units)
    sizes = [(len(unit), max(row.length for row in unit)) for unit in kept]
    return [[row for index in cut for row in kept[index]] for cut in cut_evenly(sizes, padded_tokens)]


def collate(rows: Sequence[Row], device: torch.device | str = "cpu") -> MicroBatch:
    """The tensors of some rows."""
    width = max(row.length for row in rows)
    ids = np.zeros((len(rows), width), dtype=np.int64)
    # Padding goes on counting: a position that starts again would be taken for a second sequence in the row, and the
    # model would make a mask of [b, t, t] for it.
    positions = np.tile(np.arange(width, dtype=np.int64), (len(rows), 1))
    segments = np.full((len(rows), width), PADDING, dtype=np.int32)
    predictors, targets, sampler, attempts, sequences, orders = [], [], [], [], [], []
    count = 0
    for number, row in enumerate(rows):
        p = row.prefix.size
        ids[number, :p], segments[number, :p] = row.prefix, 0
        at = p
        for segment, branch in enumerate(row.branches, start=1):
            m = branch.ids.size
            ids[number, at : at + m] = branch.ids
            positions[number, at : at + m] = np.arange(p, p + m)
            segments[number, at : at + m] = segment
            # A token is predicted by the one before it; the first of a branch by the prefix's last.
            before = np.concatenate(([p - 1], np.arange(at, at + m - 1))) + number * width
            predictors.append(before[branch.mask])
            targets.append(branch.ids[branch.mask])
            sampler.append(branch.logprobs[branch.mask])
            sampled = int(branch.mask.sum())
            attempts.append(np.full(sampled, branch.attempt))
            sequences.append(np.full(sampled, count))
            orders.append(np.full(sampled, branch.order))
            count += 1
            at += m

    def tensor(parts: Sequence[NDArray[Any]], dtype: torch.dtype) -> Tensor:
        return torch.from_numpy(np.concatenate(parts)).to(device=device, dtype=dtype)

    branching = any(len(row.branches) > 1 for row in rows)
    return MicroBatch(
        ids=torch.from_numpy(ids).to(device),
        positions=torch.from_numpy(positions).to(device),
        mask=_attention(torch.from_numpy(segments).to(device)) if branching else None,
        predictors=tensor(predictors, torch.int64),
        targets=tensor(targets, torch.int64),
        sampler=tensor(sampler, torch.float32),
        attempts=tensor(attempts, torch.int64),
        rows=tensor(sequences, torch.int64),
        order=tensor(orders, torch.int64),
        count=count,
    )


def idle_micro_batch(device: torch.device | str = "cpu") -> MicroBatch:
    """Two tokens that are nobody's, for a rank that must take part in a pass and has no rows left."""
    token = np.zeros(1, dtype=np.int32)
    branch = Branch(token, np.ones(1, dtype=np.bool_), np.zeros(1, dtype=np.float32), attempt=0)
    return collate([Row(token, (branch,))], device)


def _attention(segments: Tensor) -> Tensor:
    """bool[b, 1, t, t]: a token sees earlier tokens of the prefix and of its own branch, and itself."""
    queries, keys = segments.unsqueeze(2), segments.unsqueeze(1)
    width = segments.shape[1]
    causal = torch.ones(width, width, dtype=torch.bool, device=segments.device).tril()
    return (((keys == 0) | (keys == queries)) & causal).unsqueeze(1)
