"""What ranks report of a step, and what rank 0 decides on it.

Invariant: reports are merged in the order of ranks, so the same step is decided the same; one rank whose loss is not
finite refuses the step on all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from services.learner.metrics import Sums, TokenRecord


@dataclass(frozen=True, slots=True)
class Broken:
    """What is not finite, and in which trajectories."""

    what: str
    trajectories: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """Of one share of a batch; `record` where the guard wants the numbers of every token."""

    sums: Sums
    computed: int
    record: TokenRecord | None
    broken: Broken | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """Neither applied nor broken: the step changes nothing."""

    applies: bool = False
    learning_rate: float = 0.0
    broken: Broken | None = None


def merged(reports: Sequence[Report]) -> Report:
    """Of the whole batch; the first that is broken speaks for all."""
    if len(reports) == 1:
        return reports[0]
    broken = [report.broken for report in reports if report.broken is not None]
    records = [report.record for report in reports if report.record is not None]
    return Report(
        sums=Sums.merged([report.sums for report in reports]),
        computed=sum(report.computed for report in reports),
        record=TokenRecord.merged(records) if records else None,
        broken=broken[0] if broken else None,
    )
