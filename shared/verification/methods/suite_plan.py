"""In which order a suite's tests and their contradictions are run.

Invariant: of a test and its contradictions each is as likely to be seen first as any other, and to be the n-th of them
that is new. Code that carries something from one run to the next, and must say of each what it is when it sees it first,
is right with 1 / (1 + contradictions); in a fixed order it would know. Pure: the dice decide, and the caller's dice must
be such that nobody can foresee them.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

FEW = 2
"""Named tests up to which each is run twice and controlled twice as often: one alone is easier to guess."""


@dataclass(frozen=True, slots=True)
class Planned:
    """One run: the named test as it is, or with its file as `control` has it."""

    test: str
    control: str | None = None


def plan(
    named: Sequence[str],
    controls_of: Callable[[str, int], Sequence[str]],
    *,
    controls: int,
    controlled_tests: int,
    again: bool,
    seed: bytes,
    dice: random.Random,
) -> list[Planned]:
    """Every run of a suite in the order drawn.

    `controls_of(test, count)`: up to `count` contradictions. `seed`: chooses the tests that are controlled, the same
    ones each time. `again`: whether few tests are run twice.
    """
    tests = list(dict.fromkeys(named))
    few = len(tests) <= FEW
    chosen = sorted(tests, key=lambda test: hashlib.sha256(seed + test.encode("utf-8", "replace")).digest())
    runs = [Planned(test) for test in tests]
    for test in chosen[:controlled_tests]:
        runs += [Planned(test, changed) for changed in controls_of(test, controls * 2 if few else controls)]
    dice.shuffle(runs)
    if few and again and controls:
        # Behind the first, wherever that is: shuffled with the others, the two came first twice as often as any control.
        for test in tests:
            real = Planned(test)
            runs.insert(dice.randint(runs.index(real) + 1, len(runs)), real)
    return runs
