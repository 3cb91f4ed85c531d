"""`retrieve`: the oldest part goes to notes, where the policy can search it.

Invariant: no word is lost: what leaves the context is in the notes, whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from services.rollout.context.segments import Keep, Notes, Plan, Segment, Step, cost, fixed, units


@dataclass(frozen=True, slots=True)
class Retrieve:
    """`word_tokens`: of the word that stands in the place of what went."""

    word_tokens: int = 96

    def plan(self, segments: Sequence[Segment], budget: int) -> Plan | None:
        must = fixed(segments)
        whole = sum(segment.tokens for segment in segments)
        if whole <= budget:
            return Plan(tuple(Keep(number) for number in range(len(segments))), whole)
        if cost(segments, must) + self.word_tokens > budget:
            return None
        gone: list[int] = []
        for unit in units(segments, must):
            gone += unit
            whole -= cost(segments, unit)
            if whole + self.word_tokens <= budget:
                break
        if not gone:
            return None
        noted = frozenset(gone)
        left = [number for number in range(len(segments)) if number not in noted]
        steps: list[Step] = [Keep(number) for number in left]
        steps.insert(sum(number < gone[0] for number in left), Notes(tuple(gone), self.word_tokens))
        return Plan(tuple(steps), whole + self.word_tokens)
