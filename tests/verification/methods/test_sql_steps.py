"""Queries made to be slow in one step: an error at once, and the formats that people use still work."""

from __future__ import annotations

import pytest

from shared.sandbox.limits import Limits
from tests.verification.methods.bench import Bench

SETUP = "create table t(a, b); insert into t values (1, 'x'), (2.5, null);"


@pytest.mark.parametrize(
    ("query", "verdict"),
    [
        ("select printf('%.*c', 900000000, 'x')", "failed"), ("select format('%.900000000c', 'x')", "failed"), ("select printf('%s%-+0900000000d', 1, 1)", "failed"),
        ("select printf(cast(x'252e2a63' as text), '900000000', 'x')", "failed"), ("select printf(x'252e2a63', 900000000, 'x')", "failed"),
        ("select 'a' like '%' || replace(hex(zeroblob(600)), '0', '%a')", "failed"), ("select length(zeroblob(300000))", "failed"),
        ("select printf('%05.1f|%s|%d%%|%Q', 2.25, 'é', a, null) from t where a = 1", "passed"), ("select printf('%.2f', 1) || format('%s', x'41')", "other"),
    ],
)  # fmt: skip
def test_no_step_of_a_query_takes_long(bench: Bench, query: str, verdict: str) -> None:
    limits = Limits(cpu_s=2, wall_s=60)
    expected = [["1.00A"]] if verdict == "other" else [["002.3|é|1%|NULL"]]
    judged = bench.judge("sql_result", {"query": query, "setup": SETUP, "expected": expected}, limits)
    assert judged.verdict == ("failed" if verdict == "failed" else "passed"), judged
    assert "limit" not in judged.reason
