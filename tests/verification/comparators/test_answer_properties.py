"""Every type: total, symmetric, reflexive on what it reads, and of bounded work on hostile texts."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from shared.verification.answers import Refusal, extract
from shared.verification.comparators import (
    AnswerComparator,
    Comparator,
    DecimalComparator,
    declared_comparator,
)
from shared.verification.comparators.declared import TYPES
from shared.verification.comparators.formula.limits import TooMuch, Work
from shared.verification.comparators.formula.nodes import Node
from tests.verification.comparators.hostile import HOSTILE
from tests.verification.comparators.kinds import KINDS

COMPARATORS: dict[str, Comparator[Any]] = {
    **{name: declared_comparator(name) for name in TYPES},
    **{f"marked {name}": declared_comparator({"type": name, "extraction": "marked"}) for name in ("answer", "set")},
    "tolerant": declared_comparator({"type": "decimal", "absolute": "0.01", "relative": "0.001"}),
    "strict": declared_comparator({"type": "answer", "percent": "distinct", "missing_unit": "refused", "units": "literal"}),
    "fields": declared_comparator({"type": "json", "partial": True, "fields": {"a": "answer", "b": "set"}}),
    "columns": declared_comparator({"type": "table", "rows": "bag", "columns": {"a": "answer", "b": "decimal"}}),
}  # fmt: skip
WRITTEN = tuple(
    dict.fromkeys(text for pairs in KINDS.values() for left, right, _ in pairs for text in (left, right))
)
PIECES = (
    *"0123456789xyabcie+-*/^_(){}[]|,;:!%=<>&$. ", r"\frac", r"\sqrt", r"\sin", r"\ln", r"\log", r"\pi", r"\infty",
    r"\cup", r"\le", r"\pm", r"\text{cm}", r"\text{ or }", r"\{", r"\}", r"\begin{pmatrix}", r"\end{pmatrix}", r"\\",
    "²", "½", "π", "√", "°", "{1}{2}", "x^2", "or", "not", "cm", "10^", "e^{", "...", r"\overline{3}", r"\boxed{",
    "\ud800", "\x00", "\u202e", "٣",
)  # fmt: skip
FORMULAS = st.one_of(
    st.lists(st.sampled_from(PIECES), max_size=14).map("".join),
    st.sampled_from(WRITTEN),
    st.tuples(st.sampled_from(WRITTEN), st.sampled_from(PIECES), st.sampled_from(WRITTEN)).map("".join),
    st.text(max_size=40),
)
MAX_CALLS = 1_500_000
"""Python and C calls of one comparison, some tenths of a second; an ordinary pair takes some thousands."""
COSTLY = ("marked answer", "set", "columns", "integer_list")
"""One of each way of reading: counting calls is slow."""


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(FORMULAS, FORMULAS)
@example("\ud800", "\ud800")
@example("1/2%", "-1/-2%")
@example("x=1,y=2", "(1,2)")
def test_comparing_is_total_and_symmetric_and_what_is_read_equals_itself(left: str, right: str) -> None:
    for name, comparator in COMPARATORS.items():
        forth, back = comparator.compare(left, right), comparator.compare(right, left)
        assert forth == back, name
        parsed = comparator.parse(left)
        if isinstance(parsed, Refusal):
            assert parsed.reason.isprintable(), name
            assert not comparator.compare(left, left).equal, name
        elif name != "fields":
            assert comparator.compare(left, left).equal, name


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(WRITTEN), st.sampled_from(WRITTEN), st.sampled_from(WRITTEN))
def test_sets_do_not_depend_on_order(first: str, second: str, third: str) -> None:
    comparator = AnswerComparator()
    left, right = rf"\{{{first},{second},{third}\}}", rf"\{{{third},{first},{second}\}}"
    read = not isinstance(comparator.parse(left), Refusal)
    again = not isinstance(comparator.parse(right), Refusal)
    assert comparator.compare(left, right).equal == (read and again)


def calls_of(work: Callable[[], object], limit: int) -> int:
    """How many calls `work` makes; it is ended at the limit. Counted, so that a busy machine changes nothing."""
    made = 0

    class Ended(BaseException):
        pass

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal made
        made += event in ("call", "c_call")
        if made > limit:
            raise Ended

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        work()
    except Ended:
        pass
    finally:
        sys.setprofile(before)
    return made


@pytest.mark.parametrize("index", range(len(HOSTILE)), ids=lambda index: ascii(HOSTILE[index][:24]))
def test_no_text_takes_more_than_bounded_work(index: int) -> None:
    text = HOSTILE[index]
    for name in COSTLY:
        made = calls_of(lambda n=name: COMPARATORS[n].compare(text, text[:1900] + "+0"), MAX_CALLS)  # type: ignore[misc]
        assert made < MAX_CALLS, name


@pytest.mark.parametrize(
    "cell", ["(x+1)^{90}", r"\sin(x)^{2}+\cos(x)^{2}", "+".join(f"1/{n}" for n in range(1, 60))]
)
def test_many_costly_formulas_in_one_answer_share_one_budget(cell: str) -> None:
    rows = json.dumps([[f"{n}+{cell}", n] for n in range(100)])
    record = json.dumps({"a": cell, "b": ",".join(f"{n}+{cell}" for n in range(20))})
    for name, text in (("columns", rows), ("fields", record)):
        other = text.replace("1/7", "1/8").replace("^{2}", "^{3}").replace("90", "91")
        made = calls_of(lambda n=name, t=text, o=other: COMPARATORS[n].compare(t, o), 4 * MAX_CALLS)  # type: ignore[misc]
        assert made < 4 * MAX_CALLS, name


def test_no_global_limit_is_moved() -> None:
    before = sys.get_int_max_str_digits(), sys.getrecursionlimit()
    for text in HOSTILE:
        AnswerComparator().compare(text, text)
    assert (sys.get_int_max_str_digits(), sys.getrecursionlimit()) == before


@pytest.mark.parametrize("policy", ["whole", "boxed", "marked", "boxed_or_last_line"])
def test_extraction_is_total(policy: Any) -> None:
    for text in (*HOSTILE, *WRITTEN):
        found = extract(text, policy)
        assert isinstance(found, Refusal) or len(found) >= 1


def test_the_last_resort_is_passed_in_and_what_it_leaves_open_is_not_equal() -> None:
    asked: list[tuple[Node, Node]] = []

    def undecided(left: Node, right: Node, work: Work) -> Any:
        asked.append((left, right))
        return "undecided"

    comparator = AnswerComparator(resort=undecided)
    comparison = comparator.compare(r"\sin 2x", r"2\sin x\cos x")
    assert not comparison.equal and "not decided" in comparison.reason
    judgement = comparator.judge(r"\sin 2x", r"2\sin x\cos x")
    assert judgement.verdict == "failed" and "not decided" in judgement.reason
    back = comparator.compare(r"2\sin x\cos x", r"\sin 2x")
    assert back == comparison and asked[0] == asked[-1], "the resort sees one order, whoever wrote which"
    assert comparator.compare("(x+1)^2", "x^2+2x+1").equal, "exact arithmetic needs no resort"


def test_a_resort_out_of_work_is_undecided() -> None:
    def out_of_work(left: Node, right: Node, work: Work) -> Any:
        raise TooMuch("over")

    assert "not decided" in AnswerComparator(resort=out_of_work).compare(r"\ln e^2", "2").reason


def test_verdicts_do_not_depend_on_what_was_judged_before() -> None:
    """The same pair gives the same words, whatever came between."""
    comparator = DecimalComparator()
    pairs = [pair for kind in ("complex", "roots and powers", "logarithms") for pair in KINDS[kind]]
    first = [comparator.compare(left, right) for left, right, _ in pairs]
    again = [comparator.compare(left, right) for left, right, _ in reversed(pairs)]
    assert first == again[::-1]
