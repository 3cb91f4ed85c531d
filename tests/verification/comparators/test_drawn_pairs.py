"""Typed pairs made by rule: no false positive, no false negative, both ways round."""

from __future__ import annotations

from collections import Counter

import pytest

from shared.verification.comparators import declared_comparator
from shared.verification.comparators.judging import AnswerMethod
from tests.verification.comparators.drawn import Pair, drawn_pairs

SEED, ROUNDS = 20_261, 8


def name_of(pair: Pair) -> str:
    return pair.type if isinstance(pair.type, str) else str(pair.type["type"])


@pytest.mark.parametrize("seed", range(SEED, SEED + 3))
def test_pairs_drawn_by_rule_get_the_right_verdict_both_ways_round(seed: int) -> None:
    print(f"seed {seed}")
    pairs = drawn_pairs(seed, ROUNDS)
    wrong = []
    for pair in pairs:
        comparator = declared_comparator(pair.type)
        for first, second in ((pair.left, pair.right), (pair.right, pair.left)):
            comparison = comparator.compare(first, second)
            if comparison.equal != pair.equal:
                wrong.append((pair, comparison.reason))
        judged = AnswerMethod({"extraction": "whole"}).judge(
            {"gold": pair.left, "answer": pair.right, "type": pair.type}
        )
        if judged["equal"] != pair.equal or judged["verdict"] != ("passed" if pair.equal else "failed"):
            wrong.append((pair, judged))
    assert not wrong, f"{len(wrong)} wrong, seed {seed}: {wrong[:5]}"


def test_there_are_hundreds_of_pairs_of_every_type_equal_and_unequal() -> None:
    pairs = drawn_pairs(SEED, ROUNDS)
    assert len(pairs) >= 600
    counts = Counter((name_of(pair), pair.equal) for pair in pairs)
    types = {name for name, _ in counts}
    assert len(types) >= 15
    assert all(counts[name, equal] >= ROUNDS for name in types for equal in (True, False))
