"""Context policies: never over budget, system and last question kept, deterministic."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.rollout.context.compress import Compress
from services.rollout.context.retrieve import Retrieve
from services.rollout.context.segments import (
    ContextPolicy,
    Digest,
    Keep,
    Kind,
    Notes,
    Plan,
    Segment,
    Summary,
    fixed,
    units,
)
from services.rollout.context.window import Window

POLICIES: list[ContextPolicy] = [
    Window(),
    Compress(summary_tokens=30),
    Compress(10, 0),
    Retrieve(word_tokens=12),
]
every_policy = pytest.mark.parametrize("policy", POLICIES, ids=repr)

kinds = st.sampled_from(["system", "user", "assistant", "tool", "tool", "aside"])
segments_of = st.lists(
    st.builds(Segment, kinds, st.integers(0, 60), st.one_of(st.none(), st.integers(0, 80))), max_size=25
)


def tokens_of(plan: Plan, segments: Sequence[Segment]) -> int:
    """Of what the steps leave."""
    total = 0
    for step in plan.steps:
        if isinstance(step, Keep):
            total += segments[step.number].tokens
        elif isinstance(step, Digest):
            total += segments[step.number].digest_tokens or 0
        else:
            total += step.tokens
    return total


def numbers_of(plan: Plan) -> list[int]:
    """Every segment that stays or is stood for."""
    found: list[int] = []
    for step in plan.steps:
        found += [step.number] if isinstance(step, Keep | Digest) else step.numbers
    return found


@every_policy
@given(segments=segments_of, budget=st.integers(0, 900))
def test_what_every_policy_keeps(policy: ContextPolicy, segments: list[Segment], budget: int) -> None:
    plan = policy.plan(segments, budget)
    must = fixed(segments)
    if plan is None:
        # Only where they do not fit: with the word or summary that a policy leaves it may need a little more.
        assert sum(segment.tokens for segment in segments) > budget
        return
    assert plan.tokens == tokens_of(plan, segments) <= budget
    kept = [step.number for step in plan.steps if isinstance(step, Keep)]
    assert must <= set(kept)
    stays = [step.number for step in plan.steps if isinstance(step, Keep | Digest)]
    assert stays == sorted(stays)
    assert len(set(numbers_of(plan))) == len(numbers_of(plan))
    assert policy.plan(segments, budget) == plan


@every_policy
@given(segments=segments_of)
def test_what_fits_stays_as_it_is(policy: ContextPolicy, segments: list[Segment]) -> None:
    segments = [Segment("user", 1), *segments]  # the window would cut an answer that no question comes before
    total = sum(segment.tokens for segment in segments)
    plan = policy.plan(segments, total)
    assert plan == Plan(tuple(Keep(number) for number in range(len(segments))), total)


@given(segments=segments_of, budget=st.integers(0, 900))
def test_retrieve_loses_nothing(segments: list[Segment], budget: int) -> None:
    plan = Retrieve(word_tokens=12).plan(segments, budget)
    if plan is not None:
        assert sorted(numbers_of(plan)) == list(range(len(segments)))


@given(segments=segments_of, budget=st.integers(0, 900))
def test_compress_sums_up_only_what_digests_cannot_do(segments: list[Segment], budget: int) -> None:
    plan = Compress(summary_tokens=30, newest=1).plan(segments, budget)
    if plan is None or not any(isinstance(step, Summary) for step in plan.steps):
        return
    old = [number for unit in units(segments, fixed(segments))[:-1] for number in unit]
    saved = sum(
        max(0, segments[number].tokens - segments[number].digest_tokens)
        for number in old
        if segments[number].kind == "tool" and segments[number].digest_tokens is not None
    )
    assert sum(segment.tokens for segment in segments) - saved > budget


def conversation(*parts: tuple[Kind, int]) -> list[Segment]:
    return [Segment(kind, tokens, 5 if kind == "tool" else None) for kind, tokens in parts]


TASK = conversation(
    ("system", 10), ("user", 20), ("assistant", 10), ("tool", 100), ("assistant", 10), ("tool", 100),
    ("assistant", 10), ("tool", 100),
)  # fmt: skip


def test_window_keeps_whole_exchanges() -> None:
    plan = Window().plan(TASK, 259)
    assert plan == Plan((Keep(0), Keep(1), Keep(4), Keep(5), Keep(6), Keep(7)), 250)
    assert Window().plan(TASK, 30) == Plan((Keep(0), Keep(1)), 30)
    assert Window().plan(TASK, 29) is None


def test_window_begins_with_a_question_where_the_last_one_is_in_it() -> None:
    rounds = conversation(("user", 10), ("assistant", 10), ("user", 10), ("assistant", 10), ("user", 10))
    assert Window().plan(rounds, 45) == Plan((Keep(2), Keep(3), Keep(4)), 30)


def test_compress_digests_the_oldest_first() -> None:
    assert Compress(newest=1).plan(TASK, 300) == Plan(
        (Keep(0), Keep(1), Keep(2), Digest(3), Keep(4), Keep(5), Keep(6), Keep(7)), 265
    )


def test_compress_sums_up_when_digests_are_not_enough() -> None:
    assert Compress(summary_tokens=12, newest=1).plan(TASK, 168) == Plan(
        (Keep(0), Keep(1), Summary((2, 3), 12), Keep(4), Digest(5), Keep(6), Keep(7)), 167
    )


def test_compress_falls_back_to_the_window() -> None:
    assert Compress(summary_tokens=12, newest=2).plan(TASK, 145) == Plan(
        (Keep(0), Keep(1), Keep(6), Keep(7)), 140
    )


def test_retrieve_notes_the_oldest_units() -> None:
    assert Retrieve(word_tokens=8).plan(TASK, 260) == Plan(
        (Keep(0), Keep(1), Notes((2, 3), 8), Keep(4), Keep(5), Keep(6), Keep(7)), 258
    )


@every_policy
def test_a_million_tokens_in_ten_thousand_segments(policy: ContextPolicy) -> None:
    """Twice too much: each plan is a sweep or two, not one for every segment."""
    segments = conversation(("system", 500), ("user", 500), *[("assistant", 50), ("tool", 350)] * 5_000)  # type: ignore[list-item]
    plan = policy.plan(segments, 1_000_000)
    assert plan is not None
    assert 0 < plan.tokens <= 1_000_000
