"""`compress`: old tool outputs become digests; where that is not enough the policy itself sums up the oldest part.

Invariant: nothing is summed up while a digest would do, and the newest units stay as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from services.rollout.context.segments import Digest, Keep, Plan, Segment, Step, Summary, cost, fixed, units
from services.rollout.context.window import Window


@dataclass(frozen=True, slots=True)
class Compress:
    """`summary_tokens`: of one summary. `newest`: units that are neither digested nor summed up."""

    summary_tokens: int = 512
    newest: int = 2

    def plan(self, segments: Sequence[Segment], budget: int) -> Plan | None:
        must = fixed(segments)
        if cost(segments, must) > budget:
            return None
        parts = units(segments, must)
        old = parts[: max(0, len(parts) - self.newest)]
        digested = _digested(segments, old, budget)
        plan = _plan(segments, range(len(segments)), digested)
        if plan.tokens <= budget:
            return plan
        return self._summed_up(segments, old, digested, budget) or Window().plan(segments, budget)

    def _summed_up(
        self,
        segments: Sequence[Segment],
        old: Sequence[tuple[int, ...]],
        digested: frozenset[int],
        budget: int,
    ) -> Plan | None:
        """As few of the oldest units as possible in one summary; None where all of them are not enough."""
        whole = _plan(segments, range(len(segments)), digested).tokens
        gone: list[int] = []
        for unit in old:
            gone += unit
            whole -= sum(_tokens(segments, number, digested) for number in unit)
            if whole + self.summary_tokens <= budget:
                summed = frozenset(gone)
                rest = [number for number in range(len(segments)) if number not in summed]
                return _plan(segments, rest, digested, Summary(tuple(gone), self.summary_tokens))
        return None


def _digested(segments: Sequence[Segment], old: Sequence[tuple[int, ...]], budget: int) -> frozenset[int]:
    """The oldest tool outputs whose short forms make the whole fit, or all of them."""
    found: set[int] = set()
    whole = sum(segment.tokens for segment in segments)
    for number in (number for unit in old for number in unit):
        if whole <= budget:
            break
        segment = segments[number]
        if (
            segment.kind == "tool"
            and segment.digest_tokens is not None
            and segment.digest_tokens < segment.tokens
        ):
            found.add(number)
            whole -= segment.tokens - segment.digest_tokens
    return frozenset(found)


def _plan(
    segments: Sequence[Segment],
    numbers: Sequence[int],
    digested: frozenset[int],
    summary: Summary | None = None,
) -> Plan:
    steps: list[Step] = [Digest(number) if number in digested else Keep(number) for number in numbers]
    tokens = sum(_tokens(segments, number, digested) for number in numbers)
    if summary is not None:
        steps.insert(sum(number < summary.numbers[0] for number in numbers), summary)
        tokens += summary.tokens
    return Plan(tuple(steps), tokens)


def _tokens(segments: Sequence[Segment], number: int, digested: frozenset[int]) -> int:
    segment = segments[number]
    return (segment.digest_tokens or 0) if number in digested else segment.tokens
