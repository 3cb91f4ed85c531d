"""Extraction of one final answer by a declared policy."""

from __future__ import annotations

from typing import Any

import pytest

from shared.errors import VerificationFault
from shared.verification.answers import Extraction, Refusal, extract
from shared.verification.comparators import ExtractingComparator, IntegerComparator, declared_comparator

CASES: tuple[tuple[Extraction, str, tuple[str, ...] | str], ...] = (
    ("whole", r"so \boxed{5}", (r"so \boxed{5}",)),
    ("boxed", r"so $\boxed{5}$.", ("5",)),
    ("boxed", r"\boxed{\frac{1}{2}}", (r"\frac{1}{2}",)),
    ("boxed", r"\boxed 5", ("5",)),
    ("boxed", r"\fbox{7}", "nothing is boxed"),
    ("boxed", r"\fboxed{7}", ("7",)),
    ("boxed", r"\boxed{\{1,2\}}", (r"\{1,2\}",)),
    ("boxed", r"\boxed{1} then \boxed{2}", ("1", "2")),
    ("boxed", r"\boxed{1} then \boxed{1}", ("1",)),
    ("boxed", "5", "nothing is boxed"),
    ("boxed", r"\boxed{5", "not closed"),
    ("boxed", "".join(rf"\boxed{{{n}}}" for n in range(9)), "9 different answers"),
    ("marked", "2+3\n#### 5", ("5",)),
    ("marked", "2+3\nAnswer: 5", ("5",)),
    ("marked", "2+3\n**Final answer:** 5", ("5",)),
    ("marked", "Answer: 5\nAnswer: 6", ("5", "6")),
    ("marked", r"Answer: 5\boxed{6}", ("6",)),
    ("marked", "5", ("5",)),
    ("marked", "so\nit is 5", ("so\nit is 5",)),
    ("boxed_or_last_line", "so\n\n 5 \n", ("5",)),
    ("boxed_or_last_line", "so\nAnswer: 4\nbye", ("4",)),
    ("boxed_or_last_line", "", ("",)),
)


@pytest.mark.parametrize(("policy", "text", "wanted"), CASES)
def test_what_a_policy_takes_out(policy: Extraction, text: str, wanted: tuple[str, ...] | str) -> None:
    found = extract(text, policy)
    if isinstance(wanted, str):
        assert isinstance(found, Refusal) and wanted in found.reason
    else:
        assert found == wanted


ONE: tuple[tuple[Any, str, str, str], ...] = (
    ("integer", "5", r"\boxed{5} or rather \boxed{6}", "2 different answers are marked"),
    ("integer", "6", r"\boxed{5} or rather \boxed{6}", "2 different answers are marked"),
    ("integer", "5", "Answer: 5 or 6", "2 candidates"),
    ("integer", "7", "not 5, it is 7", "not of type integer"),
    ("answer", "7", "not 5, it is 7", "wrong answer"),
    ("answer", "5", "", "no answer"),
)


@pytest.mark.parametrize(("declared", "gold", "answer", "words"), ONE)
def test_one_answer_or_none(declared: str, gold: str, answer: str, words: str) -> None:
    comparator = declared_comparator({"type": declared, "extraction": "marked"})
    judgement = comparator.judge(gold, answer)
    assert judgement.verdict == "failed"
    assert words in judgement.reason


def test_several_marks_of_one_value_are_one_answer() -> None:
    comparator = declared_comparator({"type": "answer", "extraction": "marked"})
    assert comparator.judge("1/2", r"\boxed{0.5}, that is \boxed{\frac{1}{2}}").verdict == "passed"


def test_several_candidates_are_a_set_where_a_set_is_asked_for() -> None:
    comparator = declared_comparator({"type": "set", "extraction": "marked"})
    assert comparator.judge(r"\{5,6\}", "Answer: 5 or 6").verdict == "passed"


def test_the_gold_answer_need_not_be_marked() -> None:
    comparator = ExtractingComparator(IntegerComparator(), "boxed")
    assert comparator.judge("5", r"thus \boxed{5}").verdict == "passed"
    assert comparator.judge("5", "thus 5").reason == "no answer: nothing is boxed"
    with pytest.raises(VerificationFault, match="unreadable"):
        comparator.judge("five", "thus 5")


def test_domains_read_whole_unless_they_declare_otherwise() -> None:
    assert isinstance(IntegerComparator().parse(r"\boxed{5}"), Refusal)
    assert isinstance(declared_comparator("plain_integer").parse("so\nAnswer: 5"), Refusal)


def test_a_text_of_any_length_is_read_or_refused() -> None:
    assert isinstance(extract("x" * 10**6, "marked"), Refusal)
    found = extract("x " * 50_000 + r"\boxed{5}", "marked")
    assert found == ("5",)
