"""Declared types and their options: what is read, what is refused and why, and unknown names."""

from __future__ import annotations

import json
from typing import Any

import pytest

from shared.errors import ConfigError, VerificationFault
from shared.verification.answers import Refusal
from shared.verification.comparators import declared_comparator

SEQUENCE = {"type": "table", "columns": {"who": "text", "n": "integer"}}
PRICES = {"type": "table", "rows": "bag", "columns": {"price": {"type": "decimal", "absolute": "1"}}}
PEOPLE = {"type": "json", "fields": {"name": "text", "age": "integer"}}

EQUAL: tuple[tuple[Any, str, str], ...] = (
    ({"type": "integer", "value_only": False}, "1024", "2^{10}"),
    ({"type": "integer", "value_only": False}, "3", r"\log_2 8"),
    ({"type": "integer", "value_only": False}, "3", r"\sqrt{9}"),
    ("rational", "1/3", r"0.\overline{3}"),
    ({"type": "decimal", "value_only": False}, r"\pi", r"2\pi/2"),
    ({"type": "decimal", "absolute": "0.01", "value_only": False}, r"\pi", "3.14"),
    ({"type": "decimal", "relative": "0.001"}, "1000", "1001"),
    ({"type": "decimal", "tolerance": 0.01}, "3.14", "3.15"),
    ("quantity", "5 km", "5000 m"),
    ("set", "5", r"\{5\}"),
    ("set", r"x=1 \text{ or } x=2", "2, 1"),
    ("multiset", "1, 1, 2", "[2, 1, 1]"),
    ("tuple", "1, 2", "(1,2)"),
    ("tuple", "x=1, y=2", "(1, 2)"),
    ("interval", "(0,1)", "0<x<1"),
    ("interval", r"\mathbb{R}", r"(-\infty,\infty)"),
    ("interval", r"\{1\}\cup[2,3]", r"[2,3]\cup\{1\}"),
    ("matrix", "[[1,2]]", r"\begin{pmatrix}1&2\end{pmatrix}"),
    ("expression", "y=2x", "2x-y=0"),
    ("choice", "B", r"$\textbf{(B)}$"),
    ({"type": "choice", "letters": "ABCD"}, "D", "(d)"),
    ("boolean", "true", "Yes."),
    ("date", "1987-05-03", "3 May 1987"),
    ({"type": "text", "fold_case": True}, "Rome", "ROME"),
    ("json", '{"a": [1, 2.0], "b": null}', '{"b": null, "a": [1.0, 2]}'),
    (PEOPLE, '{"name": "Ada", "age": 36}', '{"age": "36", "name": " ada "}'),
    ({**PEOPLE, "extra": "ignored"}, '{"name": "Ada", "age": 36}', '{"name": "Ada", "age": 36, "x": 1}'),
    (SEQUENCE, '[{"who": "Ada", "n": 1}]', "n, who\n1, Ada"),
    (SEQUENCE, '[["Ada", 1]]', "| Who | N |\n|:--|--:|\n| ada | 1 |"),
    (PRICES, "[[1],[2],[3]]", "[[2],[3],[4]]"),
    ("table", "a,b\n1,x", '[{"a": 1.0, "b": "X"}]'),
)
UNEQUAL: tuple[tuple[Any, str, str], ...] = (
    ("integer", "12", r"12\%"),
    ({"type": "rational", "percent": "distinct"}, "0.5", r"50\%"),
    ({"type": "answer", "percent": "distinct"}, "0.5", r"50\%"),
    ({"type": "answer", "missing_unit": "refused"}, "5 cm", "5"),
    ({"type": "answer", "missing_unit": "refused"}, "30", r"30^\circ"),
    ({"type": "quantity", "units": "literal"}, "5 km", "5000 m"),
    ("quantity", "5 km", "5"),
    ("decimal", r"\pi", "3.14159265358979323846"),
    ({"type": "decimal", "absolute": "0.001"}, r"\pi", "3.14"),
    ("multiset", "1, 1, 2", "1, 2"),
    ("tuple", "1, 2", "2, 1"),
    ("json", '{"a": true}', '{"a": 1}'),
    ("json", '{"a": "1"}', '{"a": 1}'),
    (PEOPLE, '{"name": "Ada", "age": 36}', '{"name": "Ada", "age": 37}'),
    (SEQUENCE, '[["Ada", 1], ["Ben", 2]]', '[["Ben", 2], ["Ada", 1]]'),
    (PRICES, "[[1],[2],[3]]", "[[3],[4],[5]]"),
    ("table", "a,b\n1,x", "b,a\n1,x"),
)
REFUSED: tuple[tuple[Any, str, str], ...] = (
    ("integer", "5.5", "not of type integer"),
    ("integer", "x", "not of type integer"),
    ("integer", "5 or 6", "2 candidates"),
    ("integer", r"\{5, 6\}", "2 candidates"),
    ("integer", "(5,6)", "not of type integer"),
    ("integer", r"\sqrt{2}", "not of type integer"),
    ("rational", "x/2", "not of type rational"),
    ("decimal", "i", "not of type decimal"),
    ("tuple", r"\{1,2\}", "not of type tuple"),
    ("set", "(1,2)", "not of type set"),
    ("interval", "x+y>2", "not of type interval"),
    ("interval", "(2,1)", "not of type interval"),
    ("matrix", "[[1,2],[3]]", "not of type matrix"),
    ("expression", r"\{1\}", "not of type expression"),
    ("choice", "B or C", "not one letter alone"),
    ("choice", "(B) 12", "not one letter alone"),
    ({"type": "choice", "letters": "ABCD"}, "E", "not on offer"),
    ("boolean", "maybe", "neither true nor false"),
    ("json", "{", "no JSON"),
    ("json", '{"a": 1, "a": 2}', "a key is there twice"),
    ("json", "[" * 100 + "]" * 100, "nested over 32 deep"),
    ("json", '{"a": NaN}', "NaN is no JSON number"),
    ("json", '{"a": 1e999999}', "exponent beyond 308"),
    (PEOPLE, "[1]", "no JSON object"),
    (PEOPLE, '{"name": "Ada", "age": 3, "sex": "f"}', "'sex' is not asked for"),
    (SEQUENCE, '[["Ada"]]', "a row of 1 cells in a table of 2"),
    (SEQUENCE, '[["Ada", "one"]]', "row 1"),
    (SEQUENCE, "who,age\nAda,1", "others are asked for"),
    ("table", "[[1],[1,2]]", "a row of 2 cells in a table of 1"),
    ("table", "a,a\n1,2", "two columns of one name"),
    ("answer", r"\frac{1}{0}", "a division by zero"),
    ("answer", r"\frac{1}{", "is not readable"),
    ("answer", r"\foo{1}", "not one that is read"),
    ("answer", "0^0", "zero to the power of zero"),
    ("answer", r"\log_2 0", "logarithm"),
    ("answer", "2\x00", "control character"),
    ("answer", "\u202e12", "no answer holds"),
    ("answer", r"3\frac{5}{2}", "no mixed number"),
    ("answer", "1+1=2", "between two numbers"),
    ("answer", "(" * 60 + "1" + ")" * 60, "nested over 40 deep"),
    ("answer", "9" * 1500, "over 1000 digits"),
)


@pytest.mark.parametrize(("declared", "left", "right"), EQUAL)
def test_equal_under_the_declared_type(declared: Any, left: str, right: str) -> None:
    comparator = declared_comparator(declared)
    for first, second in ((left, right), (right, left)):
        assert comparator.compare(first, second).equal, comparator.compare(first, second).reason
        assert comparator.judge(first, second).verdict == "passed"


@pytest.mark.parametrize(("declared", "left", "right"), UNEQUAL)
def test_different_under_the_declared_type(declared: Any, left: str, right: str) -> None:
    comparator = declared_comparator(declared)
    for first, second in ((left, right), (right, left)):
        assert not isinstance(comparator.parse(first), Refusal) or comparator.parse(second)
        assert not comparator.compare(first, second).equal


@pytest.mark.parametrize(("declared", "text", "words"), REFUSED)
def test_what_is_not_of_the_type_is_refused_with_the_reason(declared: Any, text: str, words: str) -> None:
    comparator = declared_comparator(declared)
    refusal = comparator.parse(text)
    assert isinstance(refusal, Refusal) and words in refusal.reason, refusal
    assert not comparator.compare(text, text).equal
    with pytest.raises(VerificationFault, match="unreadable"):
        comparator.judge(text, text)


UNKNOWN: tuple[tuple[Any, str], ...] = (
    ("integr", "did you mean 'integer'"),
    ({"type": "decimal", "absolut": 1}, "did you mean 'absolute'"),
    ({"type": "decimal", "absolute": "x"}, "give a number of at least 0"),
    ({"type": "decimal", "absolute": -1}, "give a number of at least 0"),
    ({"type": "answer", "percent": "maybe"}, "use hundredth or distinct"),
    ({"type": "text", "percent": "distinct"}, "has no option 'percent'"),
    ({"type": "answer", "extraction": "first"}, "extraction 'first' is unknown"),
    ({"type": "json", "fields": {"a": "integr"}}, "did you mean 'integer'"),
    ({"type": "json", "fields": []}, "give an object by name"),
    ({"type": "table", "rows": "heap"}, "use sequence or set or bag"),
    ({"type": "text", "fold_case": "yes"}, "use true or false"),
    ({"type": "choice", "letters": ""}, "give letters"),
    ({"type": 5}, "answer type 5 is unknown"),
)


@pytest.mark.parametrize(("declared", "words"), UNKNOWN)
def test_an_unknown_type_or_option_names_the_nearest(declared: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        declared_comparator(declared)


CALCULATIONS = (
    "5+7", "3*4", r"3\cdot 4", "13-1", "24/2", "12/1", r"\frac{24}{2}", "2^2*3", r"\sqrt{144}", r"2\sqrt{36}", "-(5-17)",
    r"\frac{\frac{24}{1}}{2}", "(12)(1)", r"12\cdot 10^0\cdot 1", "z=5+7", r"\lfloor 12.5 \rfloor", "0.5*24", r"\log_2 4096",
    r"\binom{12}{1}", "12+0", "11.5+0.5", "6/0.5", "1200\\%+0",
)  # fmt: skip
"""Ways to say 12 and leave the work to the comparator."""


@pytest.mark.parametrize("declared", ["integer", "rational", "decimal", "number", "quantity"])
@pytest.mark.parametrize("calculation", CALCULATIONS)
def test_a_calculation_is_no_value(declared: str, calculation: str) -> None:
    comparator = declared_comparator(declared)
    judged = comparator.judge("12", calculation)
    assert judged.verdict == "failed" and judged.reason.startswith("not evaluated: "), judged
    assert comparator.judge("2^2*3", "12").verdict == "passed", "a gold answer is written as one likes"
    assert comparator.compare("12", calculation).equal
    assert declared_comparator({"type": declared, "value_only": False}).judge("12", calculation).reward == 1


VALUES = (
    ("integer", "12", ("+12", "$12$", "12.0", "x=12", "1100_2", "(12)", r"1.2\times10^1")),
    ("integer", "-1000000", ("-10^6", "-1,000,000", "-1 million", r"-1\cdot 10^{6}", "−1e6")),
    ("integer", "120", ("120",)),
    ("rational", "1/2", ("0.5", "50%", r"50\%", r"\frac{2}{4}", r"\tfrac12", "1÷2", "x = 1/2")),
    ("rational", "-7/2", (r"-3\frac12", "-3 1/2", r"-\frac{7}{2}", r"\frac{-7}{2}", r"\frac{7}{-2}", "-3.5")),
    ("rational", "1/3", (r"0.\overline{3}", "100/3%")),
    ("decimal", r"\pi", (r"\pi",)),
    ("decimal", r"1+2\sqrt{3}", (r"2\sqrt{3}+1", r"1+2\sqrt3")),
    ("decimal", r"\sqrt{3}/3", (r"\frac{1}{\sqrt{3}}", r"\frac{\sqrt3}{3}")),
    ({"type": "decimal", "absolute": "0.01"}, "12.04", ("12.05", "1.204e1", "12 1/25")),
    ("quantity", "5 km", ("5000 m", r"5\times10^3\text{ m}", "5 kilometres", r"5\cdot10^3 m")),
    ("quantity", "12 m", ("12*m", r"1.2\cdot 10^1 m", "1200 cm", "12 meters", "12.0 m")),
    ("quantity", "2.5 m/s", (r"\frac{5}{2} m/s", "2.5 m/s", "9 km/h", r"\frac{5 m}{2 s}")),
    ("quantity", "-3 m", ("-3 m", "-300 cm", "−3 m")),
    ("quantity", r"2\sqrt{3} m", (r"2\sqrt{3} m", r"2m\sqrt3")),
    ("quantity", r"\$1000", (r"\$1,000", "$1 thousand")),
    ({"type": "set", "value_only": True}, r"\{1, 12\}", ("12, 1", "1 or 12")),
)  # fmt: skip


@pytest.mark.parametrize(("declared", "gold", "answers"), VALUES)
def test_values_as_people_write_them_are_values(declared: Any, gold: str, answers: tuple[str, ...]) -> None:
    comparator = declared_comparator(declared)
    assert [
        (text, j.reason) for text in answers if (j := comparator.judge(gold, text)).verdict != "passed"
    ] == []


@pytest.mark.parametrize(
    ("declared", "gold", "answer"),
    [
        ("integer", "120", "5!"), ("integer", "91", "7*13"), ("decimal", r"\pi", r"2\pi/2"), ("decimal", r"2\sqrt3", r"\sqrt{5+7}"),
        ({"type": "decimal", "absolute": "0.01"}, "12.04", r"\sqrt{145}"), ("quantity", "12 m", "5 m + 7 m"),
        ("quantity", "12 m", "3(4 m)"), ("quantity", r"12\text{ m}", r"\frac{24 m}{2}"), ("quantity", "12 m", "(3m)(4)"), ("quantity", "12 m", r"\sqrt{144} m"), ("quantity", "12 km", "3*4 km"), ("quantity", "12 km", "3*4000 m"), ({"type": "set", "value_only": True}, "1, 12", "1, 5+7"),
        ({"type": "tuple", "value_only": True}, "(1, 12)", "(1, 5+7)"), ({"type": "answer", "value_only": True}, "12", "5+7"),
        ({"type": "json", "fields": {"n": "integer"}}, '{"n": 12}', '{"n": "5+7"}'),
        ({"type": "table", "rows": "bag", "columns": {"n": "integer"}}, "[[12],[1]]", '[[1],["5+7"]]'),
        ({"type": "integer", "extraction": "marked"}, "12", r"so \boxed{5+7}"),
    ],
)  # fmt: skip
def test_work_that_is_left_undone_is_not_paid(declared: Any, gold: str, answer: str) -> None:
    comparator = declared_comparator(declared)
    assert comparator.judge(gold, gold).verdict == "passed"
    assert comparator.judge(gold, answer).verdict == "failed"


def test_partial_credit_is_the_share_of_the_weights() -> None:
    declared = {**PEOPLE, "partial": True, "weights": {"age": 3}}
    comparator = declared_comparator(declared)
    gold = '{"name": "Ada", "age": 36}'
    found = comparator.judge(gold, '{"name": "Ben", "age": 36}')
    assert (found.verdict, found.reward, dict(found.components)) == (
        "partial",
        0.75,
        {"name": 0.0, "age": 1.0},
    )
    assert comparator.judge(gold, '{"name": "Ada"}').reward == 0.25
    assert comparator.judge(gold, '{"name": "Ben", "age": 1}').verdict == "failed"
    assert comparator.judge(gold, gold).verdict == "passed"
    assert declared_comparator(PEOPLE).judge(gold, '{"name": "Ben", "age": 36}').verdict == "failed"


def test_an_expected_object_with_an_unreadable_field_is_our_fault() -> None:
    with pytest.raises(VerificationFault, match="'age'"):
        declared_comparator(PEOPLE).judge('{"name": "Ada", "age": "old"}', "{}")
    with pytest.raises(VerificationFault, match="it is missing"):
        declared_comparator(PEOPLE).judge('{"name": "Ada"}', "{}")


def test_no_reason_holds_the_expected_value() -> None:
    secret = "4711"
    for declared, answer in (
        ("integer", "12"),
        ("set", r"\{1,2\}"),
        ("answer", "x"),
        ("tuple", "1,2"),
        ("text", "no"),
    ):
        assert secret not in declared_comparator(declared).judge(secret, answer).reason
    gold = json.dumps({"name": secret, "age": 4711})
    assert secret not in declared_comparator(PEOPLE).judge(gold, '{"name": "Ada", "age": 1}').reason
