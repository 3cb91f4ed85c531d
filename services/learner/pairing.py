"""From judged groups to the batch of a stage, pairs of answers among them.

Invariant: the two answers of a pair are in one micro-batch, so the loss of a batch does not depend on how it is cut.
"""

from __future__ import annotations

from collections.abc import Sequence

from services.learner.batching import Attempt, Batch, Pair, assemble
from services.learner.intake.groups import JudgedGroup
from services.learner.objectives.aggregation import Denominators
from services.learner.objectives.objective import Objective
from services.learner.rows import branch_of, rows_of


def batch_of(
    groups: Sequence[JudgedGroup], objective: Objective, row_tokens: int, pack: bool = True, width: int = 0
) -> Batch:
    """The batch of these groups under any objective; see `assemble`."""
    if objective.kind == "preference":
        return assemble_pairs(groups, row_tokens, pack, width)
    return assemble(groups, objective, row_tokens, pack, width)


def assemble_pairs(
    groups: Sequence[JudgedGroup], row_tokens: int, pack: bool = True, width: int = 0
) -> Batch:
    """One pair of each group that has one, each with the same weight. The prompt is computed once a pair where rows
    may share it."""
    paired = [group for group in groups if group.pair is not None]
    attempts: list[Attempt] = []
    pairs: list[Pair] = []
    for number, group in enumerate(paired):
        branches = []
        for index in group.pair or ():
            trajectory = group.slots[index].trajectory
            attempts.append(
                Attempt(
                    trajectory_id=trajectory.trajectory_id,
                    advantage=group.advantages[index],
                    weight=1 / len(paired),
                    kl=False,
                    group=number,
                    tokens=trajectory.sampled_tokens(),
                )
            )
            branches += [
                branch_of(sequence, len(attempts) - 1, order)
                for order, sequence in enumerate(trajectory.sequences)
            ]
        rows = rows_of([branch for branch in branches if branch is not None], row_tokens, pack, width)
        pairs.append(Pair(len(attempts) - 2, len(attempts) - 1, tuple(rows)))
    return Batch(
        rows=tuple(row for pair in pairs for row in pair.rows),
        attempts=tuple(attempts),
        denominators=Denominators(sum(attempt.tokens for attempt in attempts), len(attempts), 1),
        pairs=tuple(pairs),
        demonstrated=any(
            group.slots[index].trajectory.sampling_mode == "demonstration"
            for group in paired
            for index in group.pair or ()
        ),
    )
