"""The built-in families: right answers pass, their neighbours do not, prompts and answers are short."""

from __future__ import annotations

import datetime
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.domains.arithmetic.generator import Expression
from shared.domains.base import HELD_OUT_SEED, Attempt, Instance
from shared.domains.registry import load_domain
from shared.errors import ConfigError
from tests.domains.families import CASES

GOLDEN = Path(__file__).with_name("golden_instances.jsonl")
SEEDS = (*range(40), *range(HELD_OUT_SEED, HELD_OUT_SEED + 20))


@pytest.mark.parametrize(("name", "difficulty"), CASES)
def test_every_answer_of_the_trial_gets_its_verdict(name: str, difficulty: dict[str, Any]) -> None:
    domain = load_domain(name)
    for seed in SEEDS:
        instance = domain.instance(seed, difficulty)
        assert domain.verify(instance, Attempt(domain.oracle(instance))).verdict == "passed"
        assert domain.verify(instance, Attempt(domain.do_nothing(instance))).verdict == "failed"
        for miss in (*domain.near_misses(instance), *domain.exploits(instance)):
            judgement = domain.verify(instance, Attempt(miss.answer))
            assert judgement.verdict == miss.verdict, (instance, miss, judgement)
            assert judgement.verdict == "passed" or judgement.reason


@pytest.mark.parametrize("line", GOLDEN.read_text().splitlines())
def test_an_instance_comes_out_as_it_always_did(line: str) -> None:
    """Made once, kept: another digest here means that the domain's version must rise."""
    golden = json.loads(line)
    instance = load_domain(golden["domain"]).instance(golden["seed"], golden["difficulty"])
    assert instance.messages[0].content == golden["prompt"]
    assert instance.digest() == golden["digest"]


@pytest.mark.parametrize(("name", "difficulty"), CASES)
def test_answers_are_short_and_the_default_prompt_is(name: str, difficulty: dict[str, Any]) -> None:
    domain = load_domain(name)
    for seed in SEEDS:
        instance = domain.instance(seed, difficulty)
        assert len(domain.oracle(instance)) <= (12 * 5 if name == "sequences" else 32)
        if not difficulty:
            assert len(instance.messages[0].content.split()) <= 20


@pytest.mark.parametrize(("name", "difficulty"), CASES)
def test_no_two_seeds_share_much(name: str, difficulty: dict[str, Any]) -> None:
    domain = load_domain(name)
    questions = {domain.instance(seed, difficulty).identity for seed in range(40)}
    assert len(questions) >= (20 if difficulty == {"digits": 1} else 35)


@pytest.mark.parametrize(("name", "difficulty"), CASES)
def test_the_difficulty_of_an_instance_makes_it_again(name: str, difficulty: dict[str, Any]) -> None:
    """What travels in a reference has every default written out, and means the same."""
    domain = load_domain(name)
    instance = domain.instance(5, difficulty)
    again = domain.instance(5, json.loads(json.dumps(instance.reference().difficulty)))
    assert again == instance and again.digest() == instance.reference().instance_digest


def test_the_expected_value_is_in_no_public_part() -> None:
    for name, difficulty in CASES:
        domain = load_domain(name)
        instance = domain.instance(3, difficulty)
        assert "expected" not in repr(instance) and "expected" not in instance.public()
        if name != "extraction":
            answer = re.escape(domain.oracle(instance))
            assert not re.search(rf"(?<![\d, ]){answer}(?!\d)", json.dumps(instance.public()["messages"]))


@given(
    st.lists(st.integers(0, 999_999), min_size=2, max_size=4),
    st.lists(st.sampled_from(["+", "-", "*"]), min_size=3, max_size=3),
)
def test_the_value_of_an_expression_is_python_s(numbers: list[int], operations: list[Any]) -> None:
    expression = Expression(tuple(numbers), tuple(operations[: len(numbers) - 1]))
    assert expression.value() == eval(str(expression))


def test_orders_of_what_commutes_are_one_question() -> None:
    def identity(*parts: Any) -> str:
        return Expression(tuple(parts[::2]), tuple(parts[1::2])).identity()

    assert identity(17, "+", 25) == identity(25, "+", 17)
    assert identity(3, "*", 4, "+", 5) == identity(5, "+", 4, "*", 3)
    assert identity(17, "-", 25) != identity(25, "-", 17)
    assert identity(17, "+", 25) != identity(17, "*", 25)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2 * HELD_OUT_SEED),
    st.integers(2, 12),
    st.sampled_from(["sort", "filter", "dedupe", "reverse"]),
)
def test_a_sequence_puzzle_is_solved_by_the_plain_definition(seed: int, length: int, operation: str) -> None:
    domain = load_domain("sequences")
    instance = domain.instance(seed, {"length": length, "operation": operation, "max_value": 99})
    instruction, _, rest = instance.messages[0].content.partition(": ")
    items = [int(item) for item in rest.partition(".")[0].split(", ")]
    bound = int(re.findall(r"\d+", instruction)[0]) if operation == "filter" else 0
    expected = {
        "sort": sorted(items),
        "reverse": items[::-1],
        "dedupe": [item for at, item in enumerate(items) if item not in items[:at]],
        "filter": [item for item in items if item > bound],
    }[operation]
    assert len(items) == length and expected and expected != items
    assert domain.oracle(instance) == ", ".join(map(str, expected))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2 * HELD_OUT_SEED))
def test_a_document_states_the_asked_fact_once(seed: int) -> None:
    domain = load_domain("extraction")
    difficulty = {"lines": 6, "types": ["text", "integer", "date", "amount"], "distractors": 6}
    instance = domain.instance(seed, difficulty)
    *lines, question = instance.messages[0].content.split("\n")
    asked = question.removeprefix("What is ").partition("?")[0]
    answers = [line.partition(": ")[2] for line in lines if line.startswith(f"{asked}: ")]
    assert answers == [domain.oracle(instance)]
    assert [line.partition(": ")[2] for line in lines].count(answers[0]) == 1


def test_a_date_passes_in_every_unambiguous_form() -> None:
    domain = load_domain("extraction")
    instance = _with_type("date")
    day = datetime.datetime.strptime(domain.oracle(instance), "%d %B %Y").date()
    for form in (day.isoformat(), f"{day:%B} {day.day}, {day.year}", f"{day.day} {day:%b} {day.year}"):
        assert domain.verify(instance, Attempt(form)).verdict == "passed", form
    assert domain.verify(instance, Attempt(f"{day.month}/{day.day}/{day.year}")).verdict == "failed"


def _with_type(kind: str) -> Instance:
    return load_domain("extraction").instance(1, {"lines": 1, "types": [kind]})


@pytest.mark.parametrize(
    ("name", "difficulty", "words"),
    [
        ("arithmetic", {"digit": 2}, "unknown key 'digit'; did you mean 'digits'?"),
        ("arithmetic", {"digits": 7}, "digits is 7: it must be at most 6$"),
        ("arithmetic", {"operations": []}, "operations has no entry: give at least 1$"),
        ("arithmetic", {"operations": ["/"]}, "operations.0 is '/': it must be"),
        ("sequences", {"length": 5, "max_value": 3}, "max_value 3 gives 4 values for a list of 5"),
        ("sequences", {"length": 2, "max_value": 1}, "too few different questions; widen the difficulty"),
        ("extraction", {"lines": 4, "types": ["text"]}, "lines is 4, and types text have 3 fields"),
    ],
)
def test_an_unusable_difficulty_is_refused_by_name(name: str, difficulty: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        for seed in (0, HELD_OUT_SEED):
            load_domain(name).instance(seed, difficulty)
    assert name in str(caught.value) and "\n" not in str(caught.value)


def test_a_negative_seed_is_refused() -> None:
    with pytest.raises(ConfigError, match="seed of domain 'arithmetic' is -1"):
        load_domain("arithmetic").instance(-1)
