"""Whatever the guard sees, its promises hold: patience, targets, rates, ends."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from services.learner.guard.bounds import Bound
from services.learner.guard.culprits import culprits, excess
from services.learner.guard.decision import SEVERITY, Decision
from services.learner.guard.facts import Contribution, StepFacts
from services.learner.guard.guard import Guard
from services.learner.guard.state import GuardState
from shared.settings import GuardBound, GuardSettings

LIMITS: Mapping[str, float] = {
    "kl": 1.0,
    "entropy": 0.2,
    "gradient_norm": 5.0,
    "not_finite": 0.0,
    "reward_jump": 0.5,
}


def out_of(metric: str, value: float) -> bool:
    """Said again in plain words, for the model."""
    if not math.isfinite(value):
        return True
    return value < LIMITS[metric] if metric == "entropy" else value > LIMITS[metric]


class GuardMachine(RuleBasedStateMachine):
    """A run: steps of any kind, checkpoints in between, what is kept of them, and restarts."""

    @initialize(
        bounds=st.lists(
            st.tuples(
                st.sampled_from(["kl", "entropy", "gradient_norm", "not_finite"]),
                st.sampled_from(["lower_rate", "skip_batch", "roll_back", "pause"]),
                st.integers(1, 3),
            ),
            min_size=1,
            max_size=4,
            unique_by=lambda bound: bound[:2],
        ),
        roll_backs=st.integers(0, 2),
        skips=st.integers(0, 2),
    )
    def begin(self, bounds: list[tuple[Any, Any, int]], roll_backs: int, skips: int) -> None:
        self.bounds = bounds
        self.settings = GuardSettings(
            bounds=tuple(
                GuardBound(metric=metric, limit=LIMITS[metric], action=action, patience=patience)
                for metric, action, patience in bounds
            ),
            max_roll_backs=roll_backs,
            max_skips=skips,
            recovery_steps=3,
            lowest_rate=0.1,
        )
        self.guard = Guard(self.settings)
        self.state = self.guard.begun(0)
        self.step = 0
        self.streaks = dict.fromkeys(range(len(bounds)), 0)
        self.proven = {0}
        """Checkpoints whose weights a step has measured, with nothing out of bounds or on its way."""
        self.unproven: set[int] = set()
        self.checkpoints = {0}
        self.rolled = 0
        self.skipped = 0
        self.just_back = False

    @rule(
        kl=st.sampled_from([0.1, 0.9, 1.1, 30.0, math.nan]),
        entropy=st.sampled_from([0.0, 0.1, 0.3, 2.0]),
        norm=st.sampled_from([0.5, 6.0, math.inf]),
        measured=st.booleans(),
    )
    def observe(self, kl: float, entropy: float, norm: float, measured: bool) -> None:
        self.step += 1
        metrics = {"kl": kl, "entropy": entropy, "gradient_norm": norm} if measured else {}
        before = self.state
        self.state, decision = self.guard.observe(before, StepFacts(self.step, metrics))
        wrong = sum(not math.isfinite(value) for value in metrics.values())
        values = {**metrics, "not_finite": float(wrong)}
        due, any_out = set(), False
        for index, (metric, action, patience) in enumerate(self.bounds):
            if metric not in values:
                continue
            out = out_of(metric, values[metric])
            any_out |= out
            self.streaks[index] = self.streaks[index] + 1 if out else 0
            if self.streaks[index] >= patience:
                due.add(action)
                self.streaks[index] = 0
        self._check(before, decision, max(due, key=SEVERITY.index, default="continue"))
        self.just_back = decision.action == "roll_back"
        if any_out:
            self.unproven.clear()
        elif metrics and not any(self.streaks.values()):
            self.proven |= self.unproven
            self.unproven.clear()
        if self.just_back:
            self.streaks = dict.fromkeys(self.streaks, 0)

    def _check(self, before: GuardState, decision: Decision, declared: str) -> None:
        assert {crossing.action for crossing in decision.crossings} >= (
            set() if declared == "continue" else {declared}
        )
        if decision.action != declared:
            assert decision.action == "pause" and decision.because
        if declared == "roll_back":
            possible = self.rolled < self.settings.max_roll_backs and bool(before.good)
            assert (decision.action == "roll_back") == possible
        if decision.action == "roll_back":
            assert decision.roll_back_to in before.good
            assert decision.rate_factor == max(0.1, before.rate_factor / 2)
            self.rolled += 1
        else:
            assert decision.roll_back_to is None
        if declared == "skip_batch":
            assert (decision.action == "skip_batch") == (self.skipped < self.settings.max_skips)
        self.skipped = self.skipped + 1 if decision.action == "skip_batch" else 0
        assert (decision.action == "continue") == (not decision.crossings)
        assert decision.rate_factor == self.state.rate_factor

    @rule(keep=st.integers(1, 4))
    def checkpoint(self, keep: int) -> None:
        if self.step in self.checkpoints or self.step == 0:
            return
        self.checkpoints = set(sorted(self.checkpoints | {self.step})[-keep:])
        if self.just_back:
            self.proven.add(self.step)
            self.state = self.guard.restored(self.state, self.step, self.checkpoints)
        else:
            self.unproven.add(self.step)
            self.state = self.guard.checkpointed(self.state, self.step, self.checkpoints)

    @rule()
    def restart(self) -> None:
        self.state = GuardState.from_state(json.loads(json.dumps(self.state.to_state())))
        self.guard = Guard(self.settings)

    @invariant()
    def holds(self) -> None:
        if not hasattr(self, "state"):
            return
        assert 0.1 <= self.state.rate_factor <= 1.0
        assert self.state.roll_backs == self.rolled <= self.settings.max_roll_backs
        assert list(self.state.good) == sorted(set(self.state.good) & self.proven & self.checkpoints)
        assert set(self.state.unproven) == self.unproven & self.checkpoints
        assert all(n > 0 for n in self.state.streaks.values())
        assert self.state.first_out is None or self.state.first_out <= self.step


GuardMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestGuard = GuardMachine.TestCase


def test_a_checkpoint_is_good_once_the_step_after_it_was_in_bounds() -> None:
    """Any history of a bound, whatever its patience."""

    @settings(max_examples=60, deadline=None)
    @given(st.lists(st.booleans(), min_size=1, max_size=20), st.integers(1, 4))
    def check(history: list[bool], patience: int) -> None:
        bound = GuardBound(metric="kl", limit=1.0, action="lower_rate", patience=patience)
        guard = Guard(GuardSettings(bounds=(bound,)))
        state = guard.begun(0)
        for step, out in enumerate(history, start=1):
            state, _ = guard.observe(state, StepFacts(step, {"kl": 2.0 if out else 0.5}))
            state = guard.checkpointed(state, step)
        assert state.good == tuple(step for step, out in enumerate(history) if not out or step == 0)
        assert state.unproven == (len(history),)

    check()


parts = st.lists(st.tuples(st.floats(-5, 5), st.integers(1, 9)), min_size=1, max_size=8)


@given(parts, st.floats(-5, 5), st.sampled_from(["above", "below"]))
def test_the_parts_of_a_mean_are_exact(drawn: list[tuple[float, int]], limit: float, side: Any) -> None:
    """Σ excess = (mean − limit)·tokens, in the direction that is out of bounds."""
    given_ = [
        Contribution(f"t{index}", tokens=n, values={"entropy": value})
        for index, (value, n) in enumerate(drawn)
    ]
    bound = Bound("entropy", limit, side, "pause", 1)
    total = sum(n for _, n in drawn)
    mean = sum(value * n for value, n in drawn) / total
    whole = (mean - limit if side == "above" else limit - mean) * total
    assert math.isclose(sum(excess(one, bound) or 0.0 for one in given_), whole, rel_tol=1e-9, abs_tol=1e-9)
    if whole > 1e-9:
        named = culprits(given_, bound, 8)
        assert named
        by_name = {one.trajectory_id: excess(one, bound) or 0.0 for one in given_}
        assert all(by_name[name] > 0 for name in named)
        assert [by_name[name] for name in named] == sorted((by_name[name] for name in named), reverse=True)
