"""A batch in shares of about equal cost, one for each data-parallel rank.

Invariant: every row is in one share, both answers of a pair in the same; attempts and denominators are those of the
whole batch in each, so losses and gradients of the shares add up to the batch's.
"""

from __future__ import annotations

from dataclasses import replace

from services.learner.balance import balance
from services.learner.batching import Batch


def split(batch: Batch, shares: int) -> list[Batch]:
    """`shares` batches, some of them perhaps without rows."""
    if batch.pairs:
        costs = [sum(row.length for row in pair.rows) for pair in batch.pairs]
        chosen = [[batch.pairs[index] for index in part] for part in balance(costs, shares)]
        return [
            replace(batch, pairs=tuple(pairs), rows=tuple(row for pair in pairs for row in pair.rows))
            for pairs in chosen
        ]
    parts = balance([row.length for row in batch.rows], shares)
    return [replace(batch, rows=tuple(batch.rows[index] for index in part)) for part in parts]
