"""A verifier that contradicts itself: equal answers to one instance with unequal rewards, counted by domain.

Invariant: a verifier that is a function of instance and answer is never reported, however long the run; one that is
not is reported by the name of its domain, with two trajectories that show it.

Random rewards in a share r of attempts make two equal answers differ in r·(1 − r/2) of the cases where a random reward
is 0 or 1 with even odds: 18 % at r = 20 %.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

MEMORY = 2_000
"""Pairs of a domain after which older ones begin to count less: a mended verifier is forgiven in a few hundred."""


@dataclass(frozen=True, slots=True)
class JudgedAnswer:
    """`identity`: everything that the verifier was given of the attempt (answer, artifacts), as the caller knows it."""

    domain: str
    group_id: str
    identity: str
    trajectory_id: str
    reward: float


@dataclass(frozen=True, slots=True)
class Contradiction:
    domain: str
    group_id: str
    trajectories: tuple[str, str]
    rewards: tuple[float, float]


@dataclass(frozen=True, slots=True)
class UnstableDomain:
    """`at_least`: the share of equal answers that are judged unequally, as far as the evidence goes."""

    domain: str
    pairs: int
    contradictions: int
    at_least: float

    def words(self) -> str:
        return (
            f"the verifier of domain {self.domain!r} is unstable: {self.contradictions} of {self.pairs} pairs of equal "
            f"answers got unequal rewards (at least {self.at_least:.1%}); mend it, or take the domain out of the stage"
        )


@dataclass(frozen=True, slots=True)
class Consistency:
    """(pairs, contradictions) seen by domain."""

    counts: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    def observe(self, answers: Iterable[JudgedAnswer]) -> tuple[Consistency, tuple[Contradiction, ...]]:
        """Takes the attempts of some complete groups. Attempts are paired without overlap, so pairs are independent."""
        alike: dict[tuple[str, str, str], list[JudgedAnswer]] = {}
        for answer in answers:
            alike.setdefault((answer.domain, answer.group_id, answer.identity), []).append(answer)
        counts = dict(self.counts)
        found = []
        for (domain, group_id, _), same in sorted(alike.items()):
            ordered = sorted(same, key=lambda answer: answer.trajectory_id)
            for left, right in zip(ordered[::2], ordered[1::2], strict=False):
                pairs, wrong = counts.get(domain, (0, 0))
                differs = left.reward != right.reward
                if pairs >= MEMORY:
                    pairs, wrong = pairs // 2, wrong // 2
                counts[domain] = (pairs + 1, wrong + differs)
                if differs:
                    named = (left.trajectory_id, right.trajectory_id)
                    found.append(Contradiction(domain, group_id, named, (left.reward, right.reward)))
        return Consistency(counts), tuple(found)

    def unstable(self, tolerance: float = 0.01, deviations: float = 3.0) -> tuple[UnstableDomain, ...]:
        """Domains whose share is above `tolerance` even at the lower end of its interval, the worst first."""
        found = [
            UnstableDomain(domain, pairs, wrong, least)
            for domain, (pairs, wrong) in self.counts.items()
            if (least := _lower_end(wrong, pairs, deviations)) > tolerance
        ]
        return tuple(sorted(found, key=lambda one: (-one.at_least, one.domain)))

    def to_state(self) -> dict[str, Any]:
        return {domain: list(counts) for domain, counts in sorted(self.counts.items())}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Consistency:
        return cls({domain: (int(pairs), int(wrong)) for domain, (pairs, wrong) in state.items()})


def _lower_end(wrong: int, pairs: int, z: float) -> float:
    """Of Wilson's interval for a share (E. B. Wilson, 1927): honest for few pairs and for shares near zero."""
    if wrong == 0:
        return 0.0
    share, extra = wrong / pairs, z * z / pairs
    spread = z * math.sqrt(share * (1 - share) / pairs + extra / (4 * pairs))
    return max(0.0, (share + extra / 2 - spread) / (1 + extra))
