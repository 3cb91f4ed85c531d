"""The collected pairs and the pairs by kind: every verdict right, both ways round."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shared.verification.comparators.judging import AnswerMethod
from tests.verification.comparators.kinds import KINDS

COLLECTED = [
    json.loads(line) for line in (Path(__file__).parent / "math_pairs.jsonl").read_text().splitlines()
]


def verdict(gold: str, answer: str) -> bool:
    return bool(AnswerMethod({}).judge({"gold": gold, "answer": answer})["equal"])


def test_every_collected_pair_is_there() -> None:
    assert len(COLLECTED) == 62


@pytest.mark.parametrize("pair", COLLECTED, ids=lambda pair: f"{pair['gold']} | {pair['answer']}")
def test_collected_pairs_both_ways_round(pair: dict[str, object]) -> None:
    gold, answer = str(pair["gold"]), str(pair["answer"])
    assert verdict(gold, answer) == pair["equal"]
    assert verdict(answer, gold) == pair["equal"]


@pytest.mark.parametrize("kind", KINDS)
def test_pairs_by_kind_both_ways_round(kind: str) -> None:
    wrong = [
        (gold, answer)
        for left, right, equal in KINDS[kind]
        for gold, answer in ((left, right), (right, left))
        if verdict(gold, answer) != equal
    ]
    assert not wrong


def test_an_unreadable_gold_answer_is_a_fault_and_an_unreadable_answer_a_failure() -> None:
    method = AnswerMethod({})
    fault = method.judge({"gold": r"\frac{1}{0}", "answer": r"\infty"})
    assert (fault["equal"], fault["verdict"]) == (False, "infrastructure")
    assert "a division by zero" in str(fault["reason"])
    failure = method.judge({"gold": r"\infty", "answer": r"\frac{1}{0}"})
    assert (failure["equal"], failure["verdict"]) == (False, "failed")
