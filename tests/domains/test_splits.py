"""The splits: by content, so that even a space of fifty sums shares nothing between them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.domains.base import HELD_OUT_SEED, is_held_out
from shared.domains.registry import load_domain
from tests.domains.families import CASES


@pytest.mark.parametrize(("name", "difficulty"), CASES)
def test_no_question_is_in_both_splits(name: str, difficulty: dict[str, Any]) -> None:
    domain = load_domain(name)
    trained = {domain.instance(seed, difficulty).identity for seed in range(400)}
    held_out = {domain.instance(HELD_OUT_SEED + seed, difficulty).identity for seed in range(200)}
    assert trained and held_out and not trained & held_out


def test_one_digit_sums_are_all_used_and_each_in_one_split() -> None:
    """55 unordered sums of two digits: the smallest space that a run uses, covered whole."""
    domain = load_domain("arithmetic")
    trained = {domain.instance(seed, {"digits": 1}).identity for seed in range(1500)}
    held_out = {domain.instance(HELD_OUT_SEED + seed, {"digits": 1}).identity for seed in range(500)}
    assert len(trained) + len(held_out) == 55
    assert 4 <= len(held_out) <= 20


def test_the_split_of_a_question_is_the_same_at_every_difficulty() -> None:
    domain = load_domain("arithmetic")
    plain, with_minus = {"digits": 1}, {"digits": 1, "operations": ["+", "-"]}
    trained = {domain.instance(seed, plain).identity for seed in range(600)}
    held_out = {domain.instance(HELD_OUT_SEED + seed, with_minus).identity for seed in range(600)}
    assert held_out and not trained & held_out


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2 * HELD_OUT_SEED), st.sampled_from(CASES))
def test_an_instance_is_a_function_of_its_seed(seed: int, case: tuple[str, dict[str, Any]]) -> None:
    name, difficulty = case
    first, second = (load_domain(name).instance(seed, difficulty) for _ in range(2))
    assert first == second and first.digest() == second.digest()
    assert is_held_out(seed) == (seed >= HELD_OUT_SEED)


def test_another_process_with_another_hash_seed_makes_the_same_instances() -> None:
    program = (
        "from shared.domains.registry import load_domain\n"
        "from tests.domains.families import CASES\n"
        "print([load_domain(n).instance(s, d).digest() for n, d in CASES for s in range(5)])"
    )
    root = Path(__file__).parents[2]
    made = [
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(root)},
            capture_output=True, text=True, check=True,
        ).stdout
        for seed in ("1", "2")
    ]  # fmt: skip
    here = [
        load_domain(name).instance(seed, difficulty).digest()
        for name, difficulty in CASES
        for seed in range(5)
    ]
    assert made[0] == made[1] == f"{here}\n"
