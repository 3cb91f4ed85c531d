"""The verifier's pure parts: budgets from deadlines, the breaker, and what of a reward is the same every time."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.verifier.breaker import Breaker
from services.verifier.budget import LEAST_CHILD_S, allowance, is_past
from shared.contracts import Reward, Slot
from shared.contracts.reward import VARYING
from shared.errors import ConfigError
from shared.settings import VerifierSettings, parse_settings

SETTINGS = VerifierSettings(check_seconds=5.0, sandbox_seconds=60.0)
NOW = 1_800_000_000_000


@given(st.integers(-(10**9), 10**9), st.floats(0.01, 100))
def test_every_check_has_a_finite_budget_that_a_deadline_only_shortens(left_ms: int, check_s: float) -> None:
    settings = VerifierSettings(check_seconds=check_s)
    given_s = allowance(settings, NOW + left_ms, NOW)
    assert 0 < given_s.child_s <= check_s
    assert given_s.child_s >= min(check_s, LEAST_CHILD_S)
    assert given_s.left_s == max(0.0, left_ms / 1000)
    assert given_s.sandbox_s == settings.sandbox_seconds


def test_without_a_deadline_the_settings_decide() -> None:
    found = allowance(SETTINGS, 0, NOW)
    assert (found.child_s, found.sandbox_s, found.left_s) == (5.0, 60.0, float("inf"))
    assert not is_past(0, NOW) and is_past(NOW, NOW) and not is_past(NOW + 1, NOW)


def test_two_thirds_of_faults_trip_the_breaker_once() -> None:
    breaker = Breaker(share=2 / 3, least=12, window=48)
    found = [breaker.observe("d", "" if n % 3 == 0 else f"fault {n}") for n in range(40)]
    (at,) = [n for n, tripped in enumerate(found) if tripped]
    assert at == 11
    tripped = found[at]
    assert tripped is not None
    assert (tripped.faults, tripped.checks, tripped.latest) == (8, 12, ("fault 8", "fault 10", "fault 11"))
    breaker.lift("d")
    assert [n for n in range(20) if breaker.observe("d", "again")] == [11]


def test_a_few_faults_or_those_of_another_domain_do_not() -> None:
    breaker = Breaker(share=2 / 3, least=12, window=48)
    assert not any(breaker.observe("d", "fault" if n % 2 else "") for n in range(200))
    assert not any(breaker.observe("e", "fault") for _ in range(11))


@given(st.lists(st.booleans(), max_size=300), st.integers(1, 20), st.integers(0, 40))
def test_the_breaker_trips_exactly_when_its_window_says_so(faults: list[bool], least: int, more: int) -> None:
    window = least + more
    breaker, seen, tripped = Breaker(2 / 3, least, window), [], False
    for fault in faults:
        seen = [*seen, fault][-window:]
        due = not tripped and len(seen) >= least and 3 * sum(seen) >= 2 * len(seen)
        assert (breaker.observe("d", "x" if fault else "") is not None) == due
        tripped = tripped or due


def test_a_breaker_that_cannot_trip_is_refused() -> None:
    document = {
        "run": {"name": "r"},
        "model": {"path": "m"},
        "domains": [{"name": "arithmetic"}],
        "stages": [{"kind": "sft", "steps": 1}],
    }
    with pytest.raises(ConfigError, match="breaker_window is 3"):
        parse_settings({**document, "verifier": {"breaker_window": 3}})
    with pytest.raises(ConfigError, match="never_hold domain 'arithmetics' .* did you mean 'arithmetic'"):
        parse_settings({**document, "auditor": {"never_hold": ["arithmetics"]}})
    assert parse_settings({**document, "sandbox": {"cgroups": "none"}}).sandbox.cgroups == "none"
    with pytest.raises(ConfigError, match="sandbox.cgroups"):
        parse_settings({**document, "sandbox": {"cgroups": "v3"}})


def _reward(**changes: Any) -> Reward:
    slot = Slot(run_id="r", group_id="g", sample_index=0)
    base = dict(
        trajectory_id="t", slot=slot, stage="rl", stage_index=0, purpose="train", domain="d", domain_version=1,
        verdict="partial", reward=0.1 + 0.2, components={"b": 1.0, "a": 0.5}, reason="½ \ud800", flags=("x",),
        worker_id="w", wall_seconds=0.5, cpu_seconds=0.25, attempts=1, created_ms=1,
    )  # fmt: skip
    return Reward(**{**base, **changes})


def test_who_when_and_how_long_are_not_in_the_stable_bytes_and_all_else_is() -> None:
    first = _reward()
    other = _reward(
        worker_id="v",
        wall_seconds=9.0,
        cpu_seconds=8.0,
        attempts=3,
        created_ms=7,
        stream_flags=("pass_rate_jump",),
    )
    assert first.stable_bytes() == other.stable_bytes()
    shuffled = list(first.components.items())
    random.Random(0).shuffle(shuffled)
    assert _reward(components=dict(shuffled[::-1])).stable_bytes() == first.stable_bytes()
    for changes in (
        {"reward": 0.3},
        {"reason": ""},
        {"flags": ()},
        {"components": {}},
        {"verifier_version": "2"},
    ):
        assert _reward(**changes).stable_bytes() != first.stable_bytes(), changes
    assert first.stable_bytes().isascii()
    assert set(Reward.model_fields) > VARYING
