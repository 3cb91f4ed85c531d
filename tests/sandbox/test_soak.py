"""Hundreds of runs that end in every way leave nothing; `benchmarks/sandbox.py` makes ten thousand."""

from __future__ import annotations

import asyncio

import pytest

from benchmarks.sandbox import soak


@pytest.mark.slow
def test_three_hundred_runs_leave_nothing() -> None:
    found = asyncio.run(soak(300))
    assert found["found"] == []
    assert sum(found["outcomes"].values()) == 300 + 20
    assert set(found["outcomes"]) == {"exited", "signalled"}
    assert found["memory_grown_mib"] < 8
