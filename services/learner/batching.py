"""From judged groups to micro-batches of tensors.

Invariant: the loss of a batch does not depend on how it is cut. Attempts of a group that begin with the same
tokens are laid into one row: the shared prompt once, every continuation behind it, each blind to the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from services.learner.balance import cut_evenly
from services.learner.intake.groups import JudgedGroup, shaped_reward
from services.learner.objectives.advantages import whiten
from services.learner.objectives.aggregation import Denominators, token_weight
from services.learner.objectives.presets import Objective
from services.learner.rows import Row, branch_of, rows_of


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
    silent: bool = False
    """No group has signal. One attempt of each is computed, with weight 0, and nothing is trained: a policy that
    collapsed earns nothing, and its KL and entropy must be known all the same."""

    def cuts(self, padded_tokens: int) -> list[list[Row]]:
        """The rows in micro-batches."""
        if self.pairs:
            return _cut([pair.rows for pair in self.pairs], padded_tokens)
        return micro_batches(self.rows, padded_tokens)


def assemble(
    groups: Sequence[JudgedGroup], objective: Objective, row_tokens: int, pack: bool = True, width: int = 0
) -> Batch:
    """The batch of these groups. Groups without signal count in the denominators and have no rows, unless the
    objective wants its KL term on them, or no group has signal: then one attempt of each is there to be measured.
    `row_tokens` bounds a packed row, `width` is the model's: see `rows_of`."""
    slots = [slot for group in groups for slot in group.usable_slots()]
    lengths = [slot.trajectory.sampled_tokens() for slot in slots]
    limit = max((slot.trajectory.sampling.max_tokens for slot in slots), default=1)
    denominators = Denominators(sum(lengths), len(slots), objective.length_constant or limit)
    kl_everywhere = objective.kl_on_zero_signal and objective.kl_coefficient > 0
    silent = objective.kind == "policy" and not kl_everywhere and not any(group.signal for group in groups)
    attempts: list[Attempt] = []
    rows: list[Row] = []
    for number, group in enumerate(groups):
        if not (group.signal or kl_everywhere or silent):
            continue
        branches = []
        for index in group.usable[:1] if silent else group.usable:
            trajectory = group.slots[index].trajectory
            tokens = trajectory.sampled_tokens()
            attempts.append(
                Attempt(
                    trajectory_id=trajectory.trajectory_id,
                    advantage=group.advantages[index],
                    weight=0.0 if silent else token_weight(objective.aggregation, tokens, denominators),
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
        rows += rows_of([pair for pair in branches if pair is not None], row_tokens, pack, width)
    if objective.batch_norm != "none":
        attempts = _normalised(attempts, denominators, objective, kl_everywhere)
    return Batch(
        tuple(rows),
        tuple(attempts),
        denominators,
        demonstrated=objective.kind == "imitation",
        silent=silent,
    )


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


def micro_batches(rows: Sequence[Row], padded_tokens: int) -> list[list[Row]]:
    """Rows sorted by length and cut evenly so that rows × longest stays within `padded_tokens` (a longer row is
    alone)."""
    return _cut([(row,) for row in rows], padded_tokens)


def _cut(units: Iterable[tuple[Row, ...]], padded_tokens: int) -> list[list[Row]]:
    """As `micro_batches`, of rows that belong together."""
    kept = list(units)
    sizes = [(len(unit), max(row.length for row in unit)) for unit in kept]
    return [[row for index in cut for row in kept[index]] for cut in cut_evenly(sizes, padded_tokens)]
