"""Honest but odd solutions pass, all of them, and few earn a flag."""

from __future__ import annotations

import pytest

from shared.verification.detectors.flags import Flag
from tests.verification.methods.bench import Bench
from tests.verification.methods.honest import (
    NO_PROGRAM,
    ODD_PROGRAMS,
    PROBLEMS,
    STYLES,
    Honest,
    honest_functions,
)

HONEST = list(honest_functions())
MOST_FLAGGED = 0.02
"""Of the solutions; a flag refuses nothing, but people look at each."""
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def flagged() -> dict[str, tuple[str, ...]]:
    """What was flagged so far."""
    return {}


def test_there_are_enough() -> None:
    assert len({one.id for one in HONEST}) == len(HONEST) > 500


@pytest.mark.parametrize("one", HONEST, ids=lambda one: one.id)
def test_passes(bench: Bench, one: Honest, flagged: dict[str, tuple[str, ...]]) -> None:
    record = {"candidate": one.source, "entry_point": "solve", "test": one.test}
    found = bench.judge("python_function_tests", record)
    assert found.verdict == "passed", found
    if found.flags:
        flagged[one.id] = found.flags


SUMS = [
    {"stdin": "2 3\n", "expected": "5\n"},
    {"stdin": "-7 19\n", "expected": "12\n"},
    {"stdin": "0 0", "expected": "0"},
]


@pytest.mark.parametrize("style", [name for name, _ in ODD_PROGRAMS])
def test_odd_programs_pass(bench: Bench, style: str) -> None:
    found = bench.judge("program_tests", {"candidate": dict(ODD_PROGRAMS)[style], "cases": SUMS})
    assert found.verdict == "passed", found


@pytest.mark.parametrize("style", [name for name, _ in STYLES if name not in NO_PROGRAM])
def test_odd_functions_as_programs_pass(bench: Bench, style: str) -> None:
    problem = next(problem for problem in PROBLEMS if problem.name == "gcd")
    source = (
        dict(STYLES)[style](problem.source)
        + "\nif __name__ == '__main__' and 'TestSolve' not in globals():\n    print(solve(*map(int, input().split())))\n"
    )
    source = source.replace(
        "if __name__ == '__main__':\n    print(solve(*map(int, input().split())))\n", ""
    ).replace("unittest.main()", "print(solve(*map(int, input().split())))")
    cases = [{"stdin": "12 18\n", "expected": "6"}, {"stdin": "7 5\n", "expected": "1"}]
    found = bench.judge("program_tests", {"candidate": source, "cases": cases})
    assert found.verdict == "passed", found


@pytest.mark.parametrize("style", [name for name, _ in STYLES])
def test_odd_functions_have_their_properties(bench: Bench, style: str) -> None:
    problem = next(problem for problem in PROBLEMS if problem.name == "sort in place")
    record = {
        "candidate": dict(STYLES)[style](problem.source),
        "entry_point": "solve",
        "property": "sorted_permutation",
    }
    found = bench.judge("property_check", {**record, "inputs": [[[3, 1, 2]], [[]], [[5, 5, 1]]]})
    assert found.verdict == "passed", found


def test_few_are_flagged(flagged: dict[str, tuple[str, ...]]) -> None:
    """Of those above, which run first."""
    assert len(flagged) <= MOST_FLAGGED * len(HONEST), flagged
    assert not any(Flag.FOREIGN_OBJECT in flags for flags in flagged.values()), flagged
