"""Formulas against Python's own arithmetic: what is printed from a known value is read as that value."""

from __future__ import annotations

import cmath
import math
from fractions import Fraction
from typing import NamedTuple

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shared.verification.comparators import AnswerComparator, RationalComparator


class Written(NamedTuple):
    """One formula in TeX and in plain text, both fully bracketed, and its value."""

    tex: str
    plain: str
    value: Fraction


def number(value: int) -> Written:
    return Written(str(value), str(value), Fraction(value))


def joined(parts: tuple[str, Written, Written]) -> Written | None:
    operation, a, b = parts
    if operation == "+":
        return Written(rf"\left({a.tex}+{b.tex}\right)", f"({a.plain} + {b.plain})", a.value + b.value)
    if operation == "-":
        return Written(
            rf"\left({a.tex}-\left({b.tex}\right)\right)", f"({a.plain}-({b.plain}))", a.value - b.value
        )
    if operation == "*":
        return Written(rf"({a.tex})\cdot({b.tex})", f"({a.plain})*({b.plain})", a.value * b.value)
    if operation == "/" and b.value:
        return Written(rf"\frac{{{a.tex}}}{{{b.tex}}}", f"({a.plain})/({b.plain})", a.value / b.value)
    power = b.value.numerator % 4
    if operation == "^" and (a.value or power):
        return Written(rf"\left({a.tex}\right)^{{{power}}}", f"({a.plain})^{power}", a.value**power)
    return None


LEAVES = st.integers(0, 30).map(number)
FORMULAS = st.recursive(
    LEAVES,
    lambda inner: (
        st.tuples(st.sampled_from("+-*/^"), inner, inner)
        .map(joined)
        .filter(lambda formula: formula is not None)
    ),
    max_leaves=6,
)
COMPARATOR = RationalComparator()


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)
@given(FORMULAS, st.integers(1, 60))
def test_closed_formulas_have_the_value_that_they_were_made_from(formula: Written, digits: int) -> None:
    value = f"{formula.value.numerator}/{formula.value.denominator}"
    assert COMPARATOR.compare(formula.tex, value).equal
    assert COMPARATOR.compare(formula.plain, value).equal
    near = formula.value + Fraction(1, 10**digits)
    for text in (formula.tex, formula.plain):
        assert not COMPARATOR.compare(text, f"{near.numerator}/{near.denominator}").equal


FUNCTIONS = {
    r"\sin": cmath.sin, r"\cos": cmath.cos, r"\ln": cmath.log, r"\sqrt": cmath.sqrt, r"\exp": cmath.exp,
    r"\arctan": cmath.atan, r"\sinh": cmath.sinh,
}  # fmt: skip
NAMES = st.sampled_from(sorted(FUNCTIONS))
SMALL = st.integers(1, 6)
TERMS = st.tuples(SMALL, NAMES, SMALL, SMALL)


def printed(terms: list[tuple[int, str, int, int]]) -> str:
    return "+".join(rf"{k}{name}{{{a}+\frac{{x}}{{{b}}}}}" for k, name, a, b in terms)


def valued(terms: list[tuple[int, str, int, int]], x: float) -> complex:
    return sum(k * FUNCTIONS[name](a + x / b) for k, name, a, b in terms)


@settings(max_examples=60, deadline=None)
@given(st.lists(TERMS, min_size=1, max_size=4), st.lists(TERMS, min_size=1, max_size=4))
def test_functions_are_equal_exactly_where_python_finds_the_same_values(
    left: list[tuple[int, str, int, int]], right: list[tuple[int, str, int, int]]
) -> None:
    comparator = AnswerComparator()
    for other in (right, left[::-1]):
        points = (0.3, 1.7, 2.9)
        close = all(cmath.isclose(valued(left, x), valued(other, x), rel_tol=1e-9) for x in points)
        assert comparator.compare(printed(left), printed(other)).equal == close


@given(st.integers(2, 400), st.integers(2, 6))
def test_roots_of_integers(radicand: int, degree: int) -> None:
    comparator = AnswerComparator()
    outside = max(n for n in range(1, 21) if radicand % n**degree == 0)
    simple = rf"{outside}\sqrt[{degree}]{{{radicand // outside**degree}}}"
    assert comparator.compare(rf"\sqrt[{degree}]{{{radicand}}}", simple).equal
    assert comparator.compare(rf"{radicand}^{{1/{degree}}}", simple).equal
    assert not comparator.compare(rf"\sqrt[{degree}]{{{radicand + 1}}}", simple).equal
    nearest = f"{radicand ** (1 / degree):.12f}"
    whole = (
        math.isclose(float(nearest), round(float(nearest)), abs_tol=1e-9)
        and round(float(nearest)) ** degree == radicand
    )
    assert comparator.compare(nearest, simple).equal == whole
