"""What the guard decides, case by case, and what it says."""

from __future__ import annotations

import math
import tomllib
from typing import Any

import numpy as np
import pytest

from services.learner.guard.contributions import Owner, TokenFacts, contributions
from services.learner.guard.decision import Decision
from services.learner.guard.facts import Contribution, StepFacts
from services.learner.guard.guard import Guard
from services.learner.guard.state import GuardState
from shared.errors import ConfigError
from shared.settings import GuardBound, GuardSettings, parse_settings


def guard(*bounds: dict[str, Any], **rules: Any) -> Guard:
    return Guard(GuardSettings(bounds=tuple(GuardBound(**bound) for bound in bounds), **rules))


class Run:
    """A guard and its state through a run; a checkpoint after every step that goes on."""

    def __init__(self, machine: Guard) -> None:
        self.machine, self.state, self.step = machine, machine.begun(0), 0

    def __call__(
        self,
        metrics: dict[str, float] | None = None,
        rewards: dict[str, float] | None = None,
        given: tuple[Contribution, ...] = (),
    ) -> Decision:
        self.step += 1
        facts = StepFacts(self.step, metrics or {}, rewards or {}, given)
        self.state, decision = self.machine.observe(self.state, facts)
        if decision.action == "roll_back":
            self.state = self.machine.restored(self.state, self.step)
        elif decision.action in {"continue", "lower_rate"}:
            self.state = self.machine.checkpointed(self.state, self.step)
        return decision


def test_without_bounds_nothing_happens() -> None:
    decision = Run(guard())({"kl": math.inf}, {"sums": math.nan})
    assert decision == Decision(1)
    assert decision.words() == "step 1: goes on"


def test_patience_needs_steps_in_a_row() -> None:
    run = Run(guard({"metric": "kl", "limit": 0.1, "action": "pause", "patience": 3}))
    actions = [run({"kl": kl}).action for kl in (0.2, 0.2, 0.05, 0.2, 0.2, 0.1, 0.2, 0.2, 0.2)]
    assert actions == ["continue"] * 8 + ["pause"]


def test_what_is_on_its_way_is_said() -> None:
    run = Run(guard({"metric": "kl", "limit": 0.1, "action": "pause", "patience": 2}))
    decision = run({"kl": 0.25})
    assert [(c.metric, c.value, c.streak, c.due) for c in decision.watched] == [("kl", 0.25, 1, False)]
    assert decision.words() == "guard, step 1: goes on: kl 0.25 is above 0.1"


def test_a_collapse_is_rolled_back_and_named() -> None:
    run = Run(guard({"metric": "entropy", "limit": 0.1, "action": "roll_back", "patience": 2}, named=2))
    for _ in range(3):
        assert run({"entropy": 1.0}).action == "continue"
    given = (
        Contribution("fine", tokens=50, values={"entropy": 0.9}),
        Contribution("short and dead", tokens=10, values={"entropy": 0.0}),
        Contribution("long and dead", tokens=200, values={"entropy": 0.01}),
        Contribution("nearly", tokens=5, values={"entropy": 0.09}),
    )
    assert run({"entropy": 0.05}, given=given).action == "continue"
    decision = run({"entropy": 0.04}, given=given)
    # Step 4 was the first to measure what the update of step 3 had made.
    assert (decision.action, decision.roll_back_to, decision.rate_factor) == ("roll_back", 2, 0.5)
    (crossing,) = decision.crossings
    assert crossing.trajectories == ("long and dead", "short and dead")
    assert decision.words() == (
        "guard, step 5: rolled back to the checkpoint of step 2: "
        "entropy 0.04 is below 0.1 for 2 steps (long and dead, short and dead)"
    )
    # The failed steps are forgotten: a new streak begins at nothing.
    assert run({"entropy": 0.04}).action == "continue"


def test_the_same_failure_again_goes_further_back_and_then_pauses() -> None:
    run = Run(guard({"metric": "kl", "limit": 1.0, "action": "roll_back"}, max_roll_backs=3))
    for _ in range(3):
        run({"kl": 0.0})
    first = run({"kl": 9.0})
    assert first.roll_back_to == 2
    assert run.state.good == (0, 1, 4)  # step 4 stands for the weights of step 2 now
    second = run({"kl": 9.0})
    assert second.roll_back_to == 1 and run.state.good == (0, 5)
    assert run({"kl": 0.0}).action == "continue"
    assert run({"kl": 0.0}).action == "continue"  # it has proved step 6, so that is tried first
    third = run({"kl": 9.0})
    assert third.roll_back_to == 6
    last = run({"kl": 9.0})
    assert last.action == "pause" and "3 roll-backs in this stage did not help" in last.words()


def test_without_a_good_checkpoint_a_roll_back_is_a_pause() -> None:
    machine = guard({"metric": "kl", "limit": 1.0, "action": "roll_back"})
    _, decision = machine.observe(GuardState(), StepFacts(1, {"kl": 9.0}))
    assert decision.action == "pause" and decision.because == "no good checkpoint to go back to"


def test_an_update_is_judged_by_the_step_after_it() -> None:
    """A collapse in one update: the checkpoint of its own step, measured before it, looked well."""
    run = Run(guard({"metric": "kl", "limit": 1.0, "action": "roll_back"}))
    assert run({"kl": 0.0}).action == "continue" and (run.state.good, run.state.unproven) == ((0,), (1,))
    assert run({"kl": 99.0}).roll_back_to == 0
    assert (run.state.good, run.state.unproven) == ((2,), ())
    run({})  # nothing was measured, nothing is proved
    assert (run.state.good, run.state.unproven) == ((2,), (3,))
    run({"kl": 0.1})
    assert (run.state.good, run.state.unproven) == ((2, 3), (4,))


def test_checkpoints_that_are_gone_are_no_targets() -> None:
    machine = guard({"metric": "kl", "limit": 1.0, "action": "roll_back"})
    state = machine.begun(0)
    for step in (1, 2, 3):
        state, _ = machine.observe(state, StepFacts(step, {"kl": 0.0}))
        state = machine.checkpointed(state, step, kept={step - 1, step})
    assert (state.good, state.unproven) == ((2,), (3,))
    state, decision = machine.observe(state, StepFacts(4, {"kl": 2.0}))
    assert decision.roll_back_to == 2
    assert machine.restored(state, 4, kept={4}).good == (4,)


def test_the_rate_goes_down_at_once_and_comes_back_in_steps() -> None:
    rules = {"rate_factor": 0.5, "recovery_steps": 2, "lowest_rate": 0.2}
    run = Run(guard({"metric": "gradient_norm", "limit": 1.0, "action": "lower_rate"}, **rules))
    factors = [run({"gradient_norm": norm}).rate_factor for norm in (2, 2, 2, 0, 0, 0, 0, 0, 0)]
    assert factors == [0.5, 0.25, 0.2, 0.2, 0.4, 0.4, 0.8, 0.8, 1.0]


def test_the_severest_action_is_taken_and_the_rate_still_falls() -> None:
    run = Run(
        guard(
            {"metric": "kl", "limit": 1.0, "action": "lower_rate"},
            {"metric": "kl", "limit": 5.0, "action": "skip_batch"},
            {"metric": "kl", "limit": 9.0, "action": "pause"},
        )
    )
    decisions = [run({"kl": kl}) for kl in (2.0, 6.0, 10.0)]
    assert [decision.action for decision in decisions] == ["lower_rate", "skip_batch", "pause"]
    assert [decision.rate_factor for decision in decisions] == [0.5, 0.25, 0.125]
    assert [len(decision.crossings) for decision in decisions] == [1, 2, 3]


def test_skipping_ends() -> None:
    run = Run(guard({"metric": "logprob_gap_max", "limit": 1.0, "action": "skip_batch"}, max_skips=2))
    decisions = [run({"logprob_gap_max": 3.0}) for _ in range(3)]
    assert [decision.action for decision in decisions] == ["skip_batch", "skip_batch", "pause"]
    assert "2 batches in a row were skipped: it is not the data" in decisions[-1].words()


def test_a_pause_for_another_reason_ends_a_row_of_skips() -> None:
    """Found by the state machine: a roll-back that was not possible left the count as it was."""
    run = Run(
        guard(
            {"metric": "kl", "limit": 1.0, "action": "skip_batch"},
            {"metric": "kl", "limit": 1.0, "action": "roll_back", "patience": 2},
            max_roll_backs=0,
            max_skips=1,
        )
    )
    assert [run({"kl": 2.0}).action for _ in range(3)] == ["skip_batch", "pause", "skip_batch"]


def test_what_is_not_a_number_is_out_of_every_bound() -> None:
    run = Run(
        guard(
            {"metric": "entropy", "limit": 0.0, "action": "lower_rate"},
            {"metric": "not_finite", "action": "skip_batch"},
        )
    )
    given = (
        Contribution("fine", values={"entropy": 1.0}),
        Contribution("broken", values={"entropy": math.nan, "kl": math.inf}),
    )
    decision = run({"entropy": math.nan, "kl": 0.1}, given=given)
    assert decision.action == "skip_batch"
    assert [(c.metric, c.trajectories) for c in decision.crossings] == [
        ("entropy", ("broken",)),
        ("not_finite", ("broken",)),
    ]
    assert run({"entropy": 0.5, "kl": 0.1}).action == "continue"
    assert run({"not_finite": 2.0}).action == "skip_batch"  # counted by the caller


def test_a_metric_that_was_not_measured_is_not_a_zero() -> None:
    run = Run(guard({"metric": "entropy", "limit": 0.1, "action": "roll_back", "patience": 2}))
    assert run({"entropy": 0.5}).action == "continue"
    assert run({"entropy": 0.01}).watched
    assert run({}) == Decision(3)
    assert run.state.good == (0,)  # the trouble is not over
    assert run({"entropy": 0.01}).roll_back_to == 0


REWARDS = (
    Contribution("a", domain="sums", reward=1.0),
    Contribution("b", domain="sums", reward=0.0),
    Contribution("c", domain="other", reward=1.0),
    Contribution("d", domain="sums", reward=0.9),
)


@pytest.mark.parametrize(
    ("side", "now", "acts"),
    [
        ("natural", 0.9, True),
        ("natural", 0.1, True),
        ("above", 0.9, True),
        ("above", 0.1, False),
        ("below", 0.9, False),
        ("below", 0.1, True),
        ("natural", 0.7, False),
    ],
)
def test_a_reward_that_jumps_names_its_domain(side: str, now: float, acts: bool) -> None:
    run = Run(guard({"metric": "reward_jump", "limit": 0.3, "side": side, "action": "pause"}, window=4))
    assert run({}, {"sums": 0.9}).action == "continue"  # nothing to compare with yet
    for mean in (0.5, 0.5, 0.5, 0.5):
        run({}, {"sums": mean, "other": 0.5})
    decision = run({}, {"sums": now, "other": 0.5}, REWARDS)
    assert decision.action == ("pause" if acts else "continue")
    if acts:
        (crossing,) = decision.crossings
        assert (crossing.domain, crossing.value) == ("sums", pytest.approx(now - 0.5))
        assert crossing.trajectories == (("a", "d") if now > 0.5 else ("b",))
        assert "reward_jump of sums" in decision.words()


def test_a_new_level_becomes_the_usual_one_and_a_skipped_batch_does_not() -> None:
    jump = {"metric": "reward_jump", "limit": 0.3, "action": "lower_rate"}
    run = Run(guard(jump, window=4))
    means = [0.0] * 4 + [1.0] * 6
    actions = [run({}, {"sums": mean}).action for mean in means]
    assert actions == ["continue"] * 4 + ["lower_rate"] * 3 + ["continue"] * 3
    run = Run(guard({**jump, "action": "skip_batch"}, window=4, max_skips=9))
    assert [run({}, {"sums": mean}).action for mean in means].count("skip_batch") == 6


def test_the_order_of_bounds_decides_nothing() -> None:
    bounds = [
        {"metric": "kl", "limit": 1.0, "action": "lower_rate"},
        {"metric": "kl", "limit": 2.0, "action": "roll_back", "patience": 2},
        {"metric": "entropy", "limit": 0.1, "action": "skip_batch"},
    ]
    forward, backward = Run(guard(*bounds)), Run(guard(*bounds[::-1]))
    for kl, entropy in ((0.1, 1.0), (3.0, 1.0), (3.0, 0.0), (1.5, 0.0), (0.0, 1.0)):
        metrics = {"kl": kl, "entropy": entropy}
        assert forward(metrics) == backward(metrics)
        assert forward.state == backward.state


def test_parts_of_trajectories_from_tokens() -> None:
    """Two attempts of 2 and 1 tokens and one that has none."""
    owners = [Owner("a", "sums", 1.0), Owner("b", "sums", 0.0), Owner("c", "other", None)]
    tokens = TokenFacts(
        kl=np.array([1.0, 2.0, 3.0]),
        entropy=np.array([0.5, 1.5, 0.0]),
        gap=np.array([math.log(2.0), 0.0, -1.0]),
        clipped=np.array([1.0, 0.0, 0.0]),
        slope=np.array([3.0, 2.0, 4.0]),
    )
    a, b, c = contributions(owners, np.array([0, 1, 0]), tokens)
    weights = [4.0, 1.0, math.exp(-2)]
    assert a.values == {
        "kl": 2.0,
        "entropy": 0.25,
        "logprob_gap_mean": pytest.approx((math.log(2.0) + 1) / 2),
        "logprob_gap_max": 1.0,
        "clip_fraction": 0.5,
        "gradient_norm": 5.0,
        "effective_sample_size": pytest.approx((weights[0] + weights[2]) / sum(weights)),
    }
    assert (a.tokens, b.tokens, b.values["kl"], b.values["gradient_norm"]) == (2, 1, 2.0, 2.0)
    assert (c.tokens, c.values, c.domain, c.reward) == (0, {}, "other", None)


def test_the_largest_weight_is_what_lowers_the_sample_size() -> None:
    run = Run(guard({"metric": "effective_sample_size", "limit": 0.5, "action": "skip_batch"}, named=1))
    given = tuple(
        Contribution(name, values={"effective_sample_size": share})
        for name, share in (("light", 0.1), ("heavy", 0.8), ("other", 0.1))
    )
    assert run({"effective_sample_size": 0.2}, given=given).crossings[0].trajectories == ("heavy",)


RUN = """
[run]
name = "guarded"
[model]
path = "models/tiny"
[[domains]]
name = "sums"
[[stages]]
kind = "rl"
steps = 1
"""


def test_bounds_are_declared_in_the_run() -> None:
    text = RUN + '[guard]\nwindow = 4\n[[guard.bounds]]\nmetric = "kl"\nlimit = 0.5\naction = "roll_back"\n'
    declared = parse_settings(tomllib.loads(text)).guard
    assert declared == GuardSettings(
        window=4, bounds=(GuardBound(metric="kl", limit=0.5, action="roll_back"),)
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('metric = "kl"\nlimit = 0.5\nactoin = "pause"', "actoin.*did you mean 'action'"),
        ('metric = "lk"', "metric"),
        ('metric = "kl"\naction = "explode"', "action"),
        ('metric = "kl"\n[[guard.bounds]]\nmetric = "kl"', "declared twice"),
    ],
)
def test_a_bound_that_cannot_be_is_named(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_settings(tomllib.loads(RUN + "[[guard.bounds]]\n" + text))
