"""Budgets and transcripts alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.rollout.engines.base import Generation
from services.rollout.turns.budgets import Budgets, Room, Spent
from services.rollout.turns.sampling import turn_seed
from services.rollout.turns.transcript import Transcript
from shared.contracts import Limits, RoleSpan, Sampling
from shared.errors import ConfigError
from shared.settings import parse_settings
from tests.rollout.parts import make_task

budgets_of = st.builds(
    Budgets,
    turns=st.integers(1, 6), turn_tokens=st.integers(1, 50), tokens=st.integers(1, 120),
    context_tokens=st.integers(1, 200), calls=st.integers(1, 20), wall_s=st.just(1.0),
    calls_per_turn=st.integers(1, 8),
)  # fmt: skip


@given(budgets_of, st.data())
def test_every_attempt_ends_within_every_budget(budgets: Budgets, data: st.DataObject) -> None:
    spent, context, turns, tokens, calls = Spent(), data.draw(st.integers(1, 250)), 0, 0, 0
    for _ in range(100):
        room = spent.room(budgets, context)
        if not isinstance(room, Room):
            assert room in ("turns", "tokens", "context")
            return
        assert room.tokens >= 1
        made = data.draw(st.integers(1, room.tokens))
        turns, tokens, context = turns + 1, tokens + made, context + made
        assert turns <= budgets.turns
        assert tokens <= budgets.tokens
        assert context <= budgets.context_tokens
        assert made <= budgets.turn_tokens
        spent = spent.turn(made)
        run = min(data.draw(st.integers(0, 10)), spent.calls_now(budgets))
        calls += run
        assert calls <= budgets.calls
        spent = spent.called(run)
        context += data.draw(st.integers(0, 20))
    pytest.fail("it went on for ever")


@pytest.mark.parametrize(
    ("context", "tokens", "binds"),
    [(10, 40, "length"), (195, 5, "context"), (160, 40, "length")],
)
def test_what_binds_a_turn(context: int, tokens: int, binds: str) -> None:
    budgets = Budgets(turns=9, turn_tokens=40, tokens=100, context_tokens=200, calls=9, wall_s=1.0)
    room = Spent().room(budgets, context)
    assert isinstance(room, Room)
    assert (room.tokens, room.binds) == (tokens, binds)


def test_budgets_of_a_task() -> None:
    settings = parse_settings({"run": {"name": "x"}, "model": {"path": "m"}, "domains": [{"name": "arithmetic"}], "stages": [{"kind": "rl", "steps": 1}]})  # fmt: skip
    task = make_task(
        settings,
        sampling=Sampling(max_tokens=100).model_dump(),
        limits=Limits(turns=5, context_tokens=1_000_000, wall_seconds=7.0),
    )
    assert Budgets.of(task, 1 << 30) == Budgets(
        turns=5, turn_tokens=100, tokens=500, context_tokens=1_000_000, calls=80, wall_s=7.0
    )
    assert Budgets.of(task, 4096).context_tokens == 4096
    named = task.model_copy(update={"limits": Limits(turns=5, sampled_tokens=300, tool_calls=2)})
    found = Budgets.of(named, 1 << 30)
    assert (found.tokens, found.calls) == (300, 2)


@pytest.mark.parametrize("name", ["turns", "tokens", "wall_s"])
def test_a_budget_of_nothing_is_refused(name: str) -> None:
    values: dict[str, Any] = {
        "turns": 1, "turn_tokens": 1, "tokens": 1, "context_tokens": 1, "calls": 1, "wall_s": 1.0
    }  # fmt: skip
    with pytest.raises(ConfigError, match=f"budget {name} is 0: it must be positive"):
        Budgets(**(values | {name: 0}))


def ids_of(count: int, first: int = 0) -> Any:
    return np.arange(first, first + count, dtype=np.int32)


def made_of(count: int, version: int) -> Generation:
    return Generation(ids_of(count, 1000), np.full(count, -0.5, np.float32), ((count, version),), "stop")


steps = st.lists(
    st.tuples(
        st.sampled_from(["given", "sampled", "fork", "aside"]), st.integers(1, 3000), st.integers(0, 3)
    ),
    max_size=12,
)


@given(steps)
def test_a_transcript_is_what_was_put_into_it(script: list[tuple[str, int, int]]) -> None:
    transcript = Transcript()
    transcript.fork(ids_of(2), (RoleSpan(length=2, role="user"),))
    views: list[tuple[Any, Any]] = []
    sampled = 0
    for step, count, version in script:
        role = (RoleSpan(length=count, role="tool"),)
        if step == "given":
            transcript.given(ids_of(count), role)
        elif step == "fork":
            transcript.fork(ids_of(count), role)
        elif step == "aside":
            transcript.aside(ids_of(count), role, made_of(count, version))
        else:
            transcript.sampled(made_of(count, version))
        sampled += count if step in ("sampled", "aside") else 0
        views.append((transcript.ids, transcript.ids.copy()))
    for view, was in views:
        np.testing.assert_array_equal(view, was)  # an engine may hold on to it
        with pytest.raises(ValueError, match="read-only"):
            view[0] = 1
    sequences = transcript.finished()
    assert sequences
    assert (
        sum(int(sequence.loss_mask.sum()) for sequence in sequences) == sampled == transcript.sampled_tokens
    )
    if sampled:
        assert all(sequence.loss_mask.any() for sequence in sequences)


def test_seeds_of_turns() -> None:
    seeds = {turn_seed(7, turn, what) for turn in range(50) for what in ("", "/summary")}
    assert len(seeds) == 100
    assert turn_seed(7, 0) == 7
    assert turn_seed(7, 3) == turn_seed(7, 3)
