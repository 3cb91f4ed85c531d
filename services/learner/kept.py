"""Which checkpoints keep their weights.

Invariant: the newest ones always do, and so does what a roll-back may need; the rest is what was asked for and no
more. Pure: the same numbers give the same answer, in whatever order they come.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from shared.contracts import Evaluation


@dataclass(frozen=True, slots=True)
class KeepRule:
    """`last` newest; every step that `every` divides (0: none); the `best` of the highest score."""

    last: int = 2
    every: int = 0
    best: int = 0


@dataclass(frozen=True, slots=True)
class Scores:
    """What is known of the policies of a run: version → score, and versions whose evaluation is still to come."""

    known: Mapping[int, float] = field(default_factory=dict)
    awaited: frozenset[int] = frozenset()


NO_SCORES = Scores()


def kept_steps(
    complete: Collection[int], rule: KeepRule, scores: Scores, spare: Collection[int] = ()
) -> frozenset[int]:
    """Those of `complete` that keep their weights. Of equal scores the later step is the better one: it has learnt
    from more. What waits for its evaluation is kept where the best are: it may be one of them."""
    newest = sorted(complete)[-max(1, rule.last) :]
    regular = [step for step in complete if rule.every and step % rule.every == 0]
    scored = sorted((scores.known[step], step) for step in complete if step in scores.known)
    best = [step for _, step in scored[-rule.best :]] if rule.best else []
    awaited = [step for step in complete if rule.best and step in scores.awaited]
    spared = [step for step in complete if step in spare]
    return frozenset((*newest, *regular, *best, *awaited, *spared))


def score(evaluation: Evaluation, domain: str) -> float | None:
    """The pass rate on `domain`, or over all of them where it is empty; None where nothing was counted."""
    found = [result for name, result in evaluation.domains.items() if not domain or name == domain]
    count = sum(result.count for result in found)
    return sum(result.passed for result in found) / count if count else None


def scores_of(evaluations: Collection[Evaluation], domain: str, awaited: Collection[int]) -> Scores:
    """By the version that an evaluation began with: a periodic one may end with a later one. Evaluations are made in
    order, so nothing older than the newest known is awaited."""
    known: dict[int, float] = {}
    newest = -1
    for evaluation in evaluations:
        newest = max(newest, evaluation.first_version)
        value = score(evaluation, domain)
        if value is not None:
            known[evaluation.first_version] = value
    return Scores(known, frozenset(version for version in awaited if version > newest))
