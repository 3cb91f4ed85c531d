"""Honest but odd solutions pass, all of them, and few earn a flag."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from shared.verification.detectors.flags import Flag
from shared.verification.judgement import Judgement
from tests.verification.methods.bench import Bench
from tests.verification.methods.honest import Honest, honest_functions

HONEST = list(honest_functions())
MOST_FLAGGED = 0.02
"""Of the solutions; a flag refuses nothing, but people look at each."""
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def judged(bench: Bench) -> Mapping[str, Judgement]:
    cases: list[tuple[str, Mapping[str, Any]]] = [
        ("python_function_tests", {"candidate": one.source, "entry_point": "solve", "test": one.test})
        for one in HONEST
    ]
    found = bench.judge_all(cases)
    return {one.id: judgement for one, judgement in zip(HONEST, found, strict=True)}


def test_there_are_enough() -> None:
    assert len({one.id for one in HONEST}) == len(HONEST) > 500


@pytest.mark.parametrize("one", HONEST, ids=lambda one: one.id)
def test_passes(one: Honest, judged: Mapping[str, Judgement]) -> None:
    assert judged[one.id].verdict == "passed", judged[one.id]


def test_few_are_flagged(judged: Mapping[str, Judgement]) -> None:
    flagged = {name: found.flags for name, found in judged.items() if found.flags}
    assert len(flagged) <= MOST_FLAGGED * len(judged), flagged
    assert not any(Flag.FOREIGN_OBJECT in flags for flags in flagged.values()), flagged
