"""A result without rows has columns all the same, and a text without a statement has no result."""

from __future__ import annotations

from typing import Any

import pytest

from tests.verification.methods.bench import Bench

SETUP = "create table t(a, b); insert into t values (1, 2);"
NONE = "select a, b from t where a > 5"


@pytest.mark.parametrize(
    ("query", "more", "verdict"),
    [
        ("", {"expected": []}, "failed"),
        (";", {"expected": []}, "failed"),
        ("-- select a from t", {"reference": NONE}, "failed"),
        ("select a from t where a > 5", {"reference": NONE}, "failed"),
        ("select b, a from t where a > 6", {"reference": NONE}, "passed"),
        ("select a from t where a > 5", {"expected": [], "expected_columns": ["a", "b"]}, "failed"),
        ("select a from t where a > 5", {"expected": []}, "passed"),
    ],
)
def test_no_rows_are_a_result_of_a_query_alone(
    bench: Bench, query: str, more: dict[str, Any], verdict: str
) -> None:
    judged = bench.judge("sql_result", {"query": query, "setup": SETUP, **more})
    assert judged.verdict == verdict, judged
