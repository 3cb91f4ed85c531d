"""Comparators: what each type reads, what it refuses and why; symmetric, total, and never slow."""

from __future__ import annotations

import sys
import time
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shared.errors import VerificationFault
from shared.verification.answers import Refusal
from shared.verification.comparators import (
    AmountComparator,
    Comparator,
    DateComparator,
    IntegerComparator,
    IntegerListComparator,
    NumberComparator,
    TextComparator,
)

COMPARATORS: tuple[Comparator[Any], ...] = (
    TextComparator(),
    TextComparator(fold_case=False),
    IntegerComparator(),
    NumberComparator(),
    NumberComparator(absolute=Fraction(1, 100), relative=Fraction(1, 1000)),
    DateComparator(),
    AmountComparator(),
    IntegerListComparator(),
    IntegerListComparator(ordered=False),
)
EQUAL: tuple[tuple[Comparator[Any], str, str], ...] = (
    (TextComparator(), "Rome", " rome. "),
    (TextComparator(), "New  York", "new\tyork"),
    (TextComparator(), "Zürich", "Zu\u0308rich"),
    (TextComparator(), "Rome", "**Rome**"),
    (TextComparator(), "Rome", "The answer is: Rome."),
    (IntegerComparator(), "85", "85."),
    (IntegerComparator(), "85", "Answer: 85"),
    (IntegerComparator(), "85", "answer: 85."),
    (IntegerComparator(), "85", "The final answer is 85."),
    (IntegerComparator(), "85", "$85$"),
    (IntegerComparator(), "85", "`85`."),
    (IntegerComparator(), "85", '"85."'),
    (IntegerComparator(), "85", "+85"),
    (IntegerComparator(), "85", "085"),
    (IntegerComparator(), "-7", "−7"),
    (IntegerComparator(), "0", "-0"),
    (IntegerComparator(), "1234567", "1,234,567"),
    (NumberComparator(), "0.5", "1/2"),
    (NumberComparator(), "0.5", ".5"),
    (NumberComparator(), "2.5", "10/4"),
    (NumberComparator(), "31/2", "15.5"),
    (NumberComparator(), "-3/4", "-0.75"),
    (NumberComparator(), "1000", "1e3"),
    (NumberComparator(), "0.001", "1E-3"),
    (NumberComparator(), "1,000.5", "1000.50"),
    (NumberComparator(absolute=Fraction(1, 100)), "3.14", "3.15"),
    (NumberComparator(relative=Fraction(1, 100)), "1000", "1009"),
    (DateComparator(), "1987-05-03", "3 May 1987"),
    (DateComparator(), "3rd May 1987", "May 3, 1987"),
    (DateComparator(), "3 sept 1987", "Sep. 3 1987"),
    (AmountComparator(), "12.50 EUR", "€12.5"),
    (AmountComparator(), "EUR 12.50", "12.50€"),
    (AmountComparator(), "1,250 USD", "$1250.00"),
    (IntegerListComparator(), "3, 5, 9", "[3,5,9]"),
    (IntegerListComparator(), "3, 5, 9", "3 5 9"),
    (IntegerListComparator(), "-3, 5", "−3 , +5."),
    (IntegerListComparator(), "[]", "[ ]"),
    (IntegerListComparator(ordered=False), "3, 5, 3", "5, 3, 3"),
)
DIFFERENT: tuple[tuple[Comparator[Any], str, str], ...] = (
    (TextComparator(), "Rome", "Romee"),
    (TextComparator(), "Rome", "the city of Rome"),
    (TextComparator(), "Rome", "not Rome"),
    (TextComparator(fold_case=False), "Rome", "rome"),
    (IntegerComparator(), "85", "86"),
    (IntegerComparator(), "1000000007", "1000000008"),
    (NumberComparator(), "2", "2.0000001"),
    (NumberComparator(), "1/3", "0.33"),
    (NumberComparator(), "31/2", "3.5"),
    (NumberComparator(absolute=Fraction(1, 100)), "3.14", "3.1501"),
    (DateComparator(), "1987-05-03", "1987-03-05"),
    (AmountComparator(), "12.50 EUR", "12.50 USD"),
    (IntegerListComparator(), "3, 5", "5, 3"),
    (IntegerListComparator(), "1, 234", "1234"),
    (IntegerListComparator(ordered=False), "3, 5", "3, 5, 5"),
)
REFUSED: tuple[tuple[Comparator[Any], str, str], ...] = (
    (TextComparator(), "", "no answer"),
    (TextComparator(), " \n.", "no answer"),
    (TextComparator(), "Answer:", "no answer"),
    (TextComparator(), "x" * 257, "257 characters: the limit is 256"),
    (IntegerComparator(), "5 or 6", "2 candidates"),
    (IntegerComparator(), "47 + 38 = 85", "3 candidates"),
    (IntegerComparator(), "It is 85", "not an integer alone"),
    (IntegerComparator(), "not 85", "not an integer alone"),
    (IntegerComparator(), "85.0", "not an integer alone"),
    (IntegerComparator(), "85...", "not an integer alone"),
    (IntegerComparator(), "eighty-five", "is not an integer"),
    (IntegerComparator(), "Answer: Answer: 85", "not an integer alone"),
    (IntegerComparator(), "٨٥", "is not an integer"),
    (IntegerComparator(), "８５", "is not an integer"),
    (IntegerComparator(), "8²", "not an integer alone"),
    (IntegerComparator(), "8_5", "2 candidates"),
    (IntegerComparator(), "0x55", "2 candidates"),
    (IntegerComparator(), "12,34", "not an integer alone"),
    (IntegerComparator(), "8\x005", "2 candidates"),
    (IntegerComparator(), "9" * 65, "over 64 digits"),
    (IntegerComparator(), "--5", "not an integer alone"),
    (NumberComparator(), "50%", "not a number alone"),
    (NumberComparator(), "5 cm", "not a number alone"),
    (NumberComparator(), "1/0", "division by zero"),
    (NumberComparator(), "1e999999999", "exponent beyond 308"),
    (NumberComparator(), "1e309", "exponent beyond 308"),
    (NumberComparator(), "nan", "is not a number"),
    (NumberComparator(), "inf", "is not a number"),
    (NumberComparator(), "-", "is not a number"),
    (NumberComparator(), "e5", "not a number alone"),
    (NumberComparator(), "1.2.3", "not a number alone"),
    (NumberComparator(), "3.5 or 7/2", "2 candidates"),
    (DateComparator(), "03/05/1987", "which number is the month"),
    (DateComparator(), "30 February 1987", "no day of the calendar"),
    (DateComparator(), "3 Mai 1987", "no day of the calendar"),
    (DateComparator(), "May 1987", "not a date alone"),
    (DateComparator(), "3 May 1987 or 4 May 1987", "not a date alone"),
    (DateComparator(), "0000-01-01", "no day of the calendar"),
    (AmountComparator(), "12.50", "not an amount with its currency"),
    (AmountComparator(), "12.50 EUR or 13 EUR", "not an amount with its currency"),
    (AmountComparator(), "12,5 EUR", "not a number alone"),
    (IntegerListComparator(), "3, 5, nine", "'nine' in"),
    (IntegerListComparator(), "3, 5, ", "'' in"),
    (IntegerListComparator(), "3, 5 9", "'5 9' in"),
    (IntegerListComparator(), "[[3]]", "is not an integer of the list"),
    (IntegerListComparator(), "3, 5 or 5, 3", "'5 or 5' in"),
    (IntegerListComparator(), "1 " * 513, "513 items: the limit is 512"),
)


@pytest.mark.parametrize(("comparator", "left", "right"), EQUAL)
def test_equal_answers(comparator: Comparator[Any], left: str, right: str) -> None:
    for a, b in ((left, right), (right, left), (left, left), (right, right)):
        assert comparator.compare(a, b).equal, (a, b, comparator.compare(a, b))
        assert comparator.judge(a, b).verdict == "passed"


@pytest.mark.parametrize(("comparator", "left", "right"), DIFFERENT)
def test_different_answers(comparator: Comparator[Any], left: str, right: str) -> None:
    for a, b in ((left, right), (right, left)):
        comparison = comparator.compare(a, b)
        assert not comparison.equal and "different" in comparison.reason
        judgement = comparator.judge(a, b)
        assert (judgement.verdict, judgement.reward) == ("failed", 0.0) and "wrong" in judgement.reason


@pytest.mark.parametrize(("comparator", "text", "words"), REFUSED)
def test_what_is_no_answer_is_refused_with_the_reason(
    comparator: Comparator[Any], text: str, words: str
) -> None:
    refusal = comparator.parse(text)
    assert isinstance(refusal, Refusal) and words in refusal.reason, refusal
    assert not comparator.compare(text, text).equal, "an unreadable answer equals nothing"


def test_an_expected_value_that_cannot_be_read_is_our_fault() -> None:
    with pytest.raises(VerificationFault, match="the expected integer is unreadable"):
        IntegerComparator().judge("eleven", "11")


def test_a_reason_never_holds_the_expected_value() -> None:
    assert "4711" not in IntegerComparator().judge("4711", "12").reason


HOSTILE = st.text(
    st.one_of(
        st.characters(),
        st.sampled_from("0123456789+-−.,/eE[]%$€£ \t\n\x00\ud800\udfff²½٨８Ⅷ'\"`*"),
        st.characters(categories=["Cs", "Nd", "No", "Zs", "Cf"]),
    ),
    max_size=300,
)


@settings(max_examples=300, deadline=None)
@given(HOSTILE, HOSTILE)
@example("\ud800", "\ud800")
@example("\x00", "0")
@example("1" * 300, "[" * 300)
def test_no_text_makes_a_comparator_raise_and_comparing_is_symmetric(left: str, right: str) -> None:
    for comparator in COMPARATORS:
        assert comparator.compare(left, right) == comparator.compare(right, left)
        parsed = comparator.parse(left)
        assert comparator.compare(left, left).equal == (not isinstance(parsed, Refusal))
        if isinstance(parsed, Refusal):
            assert parsed.reason.isprintable() or parsed.reason.isascii()


@given(st.integers(-(10**63), 10**63), st.integers(-(10**63), 10**63))
def test_integers_compare_as_integers(left: int, right: int) -> None:
    for comparator in (IntegerComparator(), NumberComparator()):
        assert comparator.compare(str(left), f"{right:,}").equal == (left == right)
    assert IntegerListComparator().compare(f"{left}, {right}", f"[{right}, {left}]").equal == (left == right)


@given(st.fractions(max_denominator=10**9), st.fractions(max_denominator=10**9), st.fractions(0, 10))
def test_tolerance_is_the_distance(left: Fraction, right: Fraction, allowed: Fraction) -> None:
    comparator = NumberComparator(absolute=allowed)
    assert comparator.compare(str(left), str(right)).equal == (abs(left - right) <= allowed)


@given(st.decimals(allow_nan=False, allow_infinity=False, places=6, min_value=-(10**9), max_value=10**9))
def test_decimals_read_exactly(value: Any) -> None:
    assert NumberComparator().parse(f"{value:f}") == Fraction(value)


@given(st.dates())
def test_dates_read_as_written(day: Any) -> None:
    long = f"{day.day} {day:%B} {day.year:04d}"
    assert DateComparator().parse(day.isoformat()) == day == DateComparator().parse(long)


LARGE = (
    "9" * 10**6,
    "1" + "," + ",".join(["000"] * 300_000),
    "1e" + "9" * 10**6,
    "1/" * 500_000,
    "[" * 10**6,
    " " * 10**6 + "5",
    "answer: " * 100_000,
    "(" * 10**6 + ")" * 10**6,
    "٣" * 10**6,
    "\ud800" * 10**6,
    "$" * 255,
    "1 " * 2000,
    "-" * 255,
    "1e308/1e308",
    "9" * 64 + "e308",
    "May " * 63,
)


def test_no_text_takes_long() -> None:
    limit = sys.get_int_max_str_digits()
    for text in LARGE:
        for comparator in COMPARATORS:
            started = time.perf_counter()
            comparator.compare(text, text)
            assert time.perf_counter() - started < 0.1, (comparator, text[:20])
    assert sys.get_int_max_str_digits() == limit, "no global limit is moved for an answer's sake"
