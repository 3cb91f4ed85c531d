"""`window`: the newest that fits.

Invariant: what stays besides the fixed segments is a run of whole units that ends with the newest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from services.rollout.context.segments import Keep, Plan, Segment, cost, fixed, units


@dataclass(frozen=True, slots=True)
class Window:
    """Old exchanges are forgotten."""

    def plan(self, segments: Sequence[Segment], budget: int) -> Plan | None:
        must = fixed(segments)
        spent = cost(segments, must)
        if spent > budget:
            return None
        kept: list[tuple[int, ...]] = []
        for unit in reversed(units(segments, must)):
            price = cost(segments, unit)
            if spent + price > budget:
                break
            kept.append(unit)
            spent += price
        numbers = sorted([*must, *(number for unit in _from_a_question(segments, kept) for number in unit)])
        return Plan(tuple(Keep(number) for number in numbers), cost(segments, numbers))


def _from_a_question(segments: Sequence[Segment], kept: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """`kept`, newest first. Where the last question is among them they begin with a question: an answer whose
    question is gone explains nothing, and many templates refuse one."""
    last = max((number for number in fixed(segments) if segments[number].kind == "user"), default=-1)
    if not kept or kept[-1][0] > last:
        return kept
    oldest = next(
        (
            at
            for at in range(len(kept) - 1, -1, -1)
            if segments[kept[at][0]].kind == "user" or kept[at][0] > last
        ),
        -1,
    )
    return kept[: oldest + 1]
