"""Shares of about equal cost: nothing is lost, nothing is over its budget, nothing could be fewer."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.learner.balance import balance, cut_evenly

LENGTHS = st.lists(st.integers(0, 60), max_size=24)
UNITS = st.lists(st.tuples(st.integers(1, 3), st.integers(1, 40)), min_size=1, max_size=7)


def size(units: list[tuple[int, int]], cut: list[int]) -> int:
    return sum(units[i][0] for i in cut) * max(units[i][1] for i in cut)


@given(LENGTHS, st.integers(1, 6))
def test_parts_are_about_equal(lengths: list[int], parts: int) -> None:
    shares = balance(lengths, parts)
    assert len(shares) == parts
    assert sorted(itertools.chain(*shares)) == list(range(len(lengths)))
    sums = [sum(lengths[i] for i in share) for share in shares]
    assert max(sums) - min(sums) <= max(lengths, default=0)
    best = max(max(lengths, default=0), -(-sum(lengths) // parts))
    assert max(sums) <= sum(lengths) / parts + max(lengths, default=0) * (1 - 1 / parts)
    assert max(sums) >= best
    if not any(lengths):
        assert max(map(len, shares)) - min(map(len, shares)) <= 1


@given(st.lists(st.integers(1, 20), min_size=1, max_size=8), st.integers(1, 4))
def test_the_largest_part_is_within_a_third_of_the_best(lengths: list[int], parts: int) -> None:
    best = (
        min(
            max(sum(n for n, part in zip(lengths, chosen, strict=True) if part == p) for p in range(parts))
            for chosen in itertools.product(range(parts), repeat=len(lengths))
        )
        if parts ** len(lengths) <= 6561
        else None
    )
    if best is not None:
        found = max(sum(lengths[i] for i in share) for share in balance(lengths, parts))
        assert found <= best * (4 / 3 - 1 / (3 * parts)) + 1e-9


def test_no_part_is_refused() -> None:
    with pytest.raises(ValueError, match="0 parts"):
        balance([1, 2], 0)


@given(UNITS, st.integers(1, 100))
def test_cuts_are_within_the_budget_and_as_few_as_can_be(units: list[tuple[int, int]], budget: int) -> None:
    cuts = cut_evenly(units, budget)
    assert sorted(itertools.chain(*cuts)) == list(range(len(units)))
    assert all(len(cut) == 1 or size(units, cut) <= budget for cut in cuts)
    # Against every way to cut the same order.
    order = [index for cut in cuts for index in cut]
    assert [units[i][1] for i in order] == sorted((length for _, length in units), reverse=True)
    ways = []
    for marks in itertools.product([False, True], repeat=len(order) - 1):
        way = [[order[0]]]
        for index, mark in zip(order[1:], marks, strict=True):
            if mark:
                way.append([index])
            else:
                way[-1].append(index)
        if all(len(cut) == 1 or size(units, cut) <= budget for cut in way):
            ways.append(way)
    assert len(cuts) == min(map(len, ways))
    largest = min(max(size(units, cut) for cut in way) for way in ways if len(way) == len(cuts))
    assert max(size(units, cut) for cut in cuts) == largest


def test_the_last_cut_is_no_remnant() -> None:
    assert [len(cut) for cut in cut_evenly([(1, 10)] * 11, 100)] == [6, 5]


def test_no_units_are_no_cuts() -> None:
    assert cut_evenly([], 100) == []
