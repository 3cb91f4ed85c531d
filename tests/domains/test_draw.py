"""Draws: the same on every machine, inside their range, and what a shuffle must be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.domains.draw import Draw

GOLDEN_INTEGERS = [25, 45, 8, 21, 68, 16, 7, 85]
GOLDEN_SHUFFLE = [1, 0, 4, 2, 3, 5]


def test_the_stream_of_a_key_never_changes() -> None:
    draw = Draw("arithmetic/1/7/0")
    assert [draw.integer(0, 99) for _ in range(8)] == GOLDEN_INTEGERS
    assert draw.shuffled(range(6)) == GOLDEN_SHUFFLE


@given(
    st.text(max_size=20).filter(lambda s: s.isascii()), st.integers(-(10**9), 10**9), st.integers(0, 10**9)
)
def test_integers_stay_in_their_range(key: str, low: int, span: int) -> None:
    assert low <= Draw(key).integer(low, low + span) <= low + span


@given(st.integers(0, 10**6), st.lists(st.integers(), max_size=12))
def test_a_shuffle_is_a_permutation_and_a_sample_its_beginning(key: int, items: list[int]) -> None:
    assert sorted(Draw(str(key)).shuffled(items)) == sorted(items)
    half = len(items) // 2
    assert Draw(str(key)).sample(items, half) == Draw(str(key)).shuffled(items)[:half]


def test_every_value_of_a_small_range_comes_up_evenly() -> None:
    draw = Draw("evenly")
    counts = [0] * 6
    for _ in range(6000):
        counts[draw.integer(0, 5)] += 1
    assert min(counts) > 850 and max(counts) < 1150


def test_impossible_draws_are_refused() -> None:
    with pytest.raises(ValueError, match="holds 0 integers"):
        Draw("").integer(3, 2)
    with pytest.raises(ValueError, match="holds"):
        Draw("").integer(0, 1 << 60)
    with pytest.raises(ValueError, match="3 of 2 items"):
        Draw("").sample((1, 2), 3)
