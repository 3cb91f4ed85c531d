"""The KL budget holds its bounds whatever it is told, and a renewed reference survives a kill."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from test_learner_resume import KilledError, Life, book, bytes_of, log_of, run_settings

from services.learner.guard.kl_budget import KlBudget, KlState
from services.learner.objectives.presets import preset
from shared.storage import ObjectStore


class BudgetMachine(RuleBasedStateMachine):
    """A model of two numbers beside the real thing."""

    def __init__(self) -> None:
        super().__init__()
        self.budget = KlBudget(0.1, target=0.05, horizon=200, floor=1e-3, ceiling=2.0, refresh_every=3)
        self.state = self.budget.begin()
        self.served = 0

    @rule(
        kl=st.floats(-1, 100) | st.sampled_from([math.nan, math.inf, -math.inf]), attempts=st.integers(0, 500)
    )
    def step(self, kl: float, attempts: int) -> None:
        before, self.state = self.state, self.budget.stepped(self.state, kl, attempts)
        self.served += 1
        ratio = self.state.coefficient / before.coefficient
        if attempts == 0 or not math.isfinite(kl):
            assert ratio == 1
            return
        reach = 0.2 * min(1.0, attempts / 200)
        assert 1 - reach - 1e-12 <= ratio <= 1 + reach + 1e-12
        assert ratio <= 1 if kl < 0.05 else ratio >= 1

    @precondition(lambda self: self.budget.refresh_due(self.state))
    @rule()
    def refresh(self) -> None:
        before, self.state = self.state, self.budget.refreshed(self.state)
        self.served = 0
        assert self.state.coefficient == before.coefficient

    @invariant()
    def holds(self) -> None:
        assert 1e-3 <= self.state.coefficient <= 2.0
        assert self.budget.refresh_due(self.state) == (self.served >= 3)
        assert not replace(self.budget, refresh_every=0).refresh_due(self.state)
        assert not replace(self.budget, initial=0.0).refresh_due(self.state)


BudgetMachine.TestCase.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)
TestBudget = BudgetMachine.TestCase


def test_a_fixed_coefficient_never_moves() -> None:
    budget = KlBudget.of(preset("grpo", kl_coefficient=0.1))
    state = budget.begin()
    for kl in (0.0, 5.0, math.nan):
        state = budget.stepped(state, kl, 64)
    assert state == KlState(0.1, since_refresh=3)
    assert not budget.refresh_due(state)


def test_the_rule_of_the_paper() -> None:
    """β·(1 + clip(KL/target − 1, ±0.2)·n/horizon): 0.1·(1 + 0.2·256/10,000) at KL 9 and target 6."""
    budget = KlBudget.of(preset("grpo", kl_coefficient=0.1, kl_target=6.0))
    assert budget.stepped(budget.begin(), 9.0, 256).coefficient == pytest.approx(0.100512, abs=1e-12)
    assert budget.stepped(budget.begin(), 0.0, 256).coefficient == pytest.approx(0.1 * (1 - 0.2 * 0.0256))


def test_a_coefficient_comes_back_from_its_floor() -> None:
    budget = KlBudget.of(preset("grpo", kl_coefficient=0.1, kl_target=0.1, kl_horizon=1, kl_floor=0.01))
    state = budget.begin()
    for _ in range(100):
        state = budget.stepped(state, 0.0, 8)
    assert state.coefficient == 0.01
    for _ in range(100):
        state = budget.stepped(state, 1.0, 8)
    assert state.coefficient == 10.0


REFRESHED: dict[str, Any] = {
    "preset": "grpo",
    "overrides": {"kl_coefficient": 0.1, "kl_target": 0.01, "kl_horizon": 100, "reference_refresh_steps": 2},
}


def test_a_renewed_reference_survives_a_kill(tmp_path: Path) -> None:
    """Steps 3, 4 | renewed | 5, 6: step 5 begins at its own reference; a kill at step 6 changes no byte."""

    def make(folder: str) -> Life:
        base = run_settings(tmp_path / folder)
        rl = base.stages[1].model_copy(
            update={"steps": 4, "objective": base.stages[1].objective.model_validate(REFRESHED)}
        )
        return Life(base.model_copy(update={"stages": (base.stages[0], rl)}), log_of())

    quiet = make("quiet")
    expected = bytes_of(quiet.live())
    steps = book([quiet])
    assert steps[3].kl == pytest.approx(0.0, abs=1e-6)
    assert steps[4].kl > 1e-6
    assert steps[5].kl == pytest.approx(0.0, abs=1e-6)
    assert steps[6].kl > 1e-6
    first = make("killed")
    first.kill, first.at_step = "after the step", 6
    with pytest.raises(KilledError):
        first.live()
    second = make("killed")
    assert bytes_of(second.live(seed=7)) == expected
    assert book([first, second]) == steps
    keys = ObjectStore(second.settings.storage_uri).list("references/")
    names = sorted(key.rsplit("/", 1)[-1] for key in keys)
    assert names == ["0001-00000002.safetensors"]  # of the newest but one; the newest ends the run


def test_old_references_go_with_their_checkpoints(tmp_path: Path) -> None:
    base = run_settings(tmp_path, learner={"micro_batch_tokens": 16, "keep_checkpoints": 1})
    often = {**REFRESHED, "overrides": {**REFRESHED["overrides"], "reference_refresh_steps": 1}}
    rl = base.stages[1].model_copy(
        update={"steps": 4, "objective": base.stages[1].objective.model_validate(often)}
    )
    settings = base.model_copy(update={"stages": (base.stages[0], rl)})
    for step in (4, 5):
        with pytest.raises(KilledError):
            Life(settings, log_of(), kill="after the step", at_step=step).live()
        keys = ObjectStore(settings.storage_uri).list("references/")
        # Step 3 is the stage's first.
        assert [key.rsplit("/", 1)[-1] for key in keys] == [f"0001-{step - 3:08d}.safetensors"]
    Life(settings, log_of()).live()
    assert ObjectStore(settings.storage_uri).list("references/") == []  # the end of the run needs none


def test_a_kl_in_the_reward_survives_a_kill(tmp_path: Path) -> None:
    """REINFORCE++ whole, through the trainer: every group has signal, and a kill changes no byte."""
    objective = {
        "preset": "reinforce_plus_plus",
        "overrides": {"kl_coefficient": 0.1, "kl_target": 0.01, "entropy_coefficient": 0.01},
    }

    def make(folder: str) -> Life:
        base = run_settings(tmp_path / folder)
        rl = base.stages[1].model_copy(
            update={"objective": base.stages[1].objective.model_validate(objective)}
        )
        return Life(base.model_copy(update={"stages": (base.stages[0], rl)}), log_of())

    quiet = make("quiet")
    expected = bytes_of(quiet.live())
    steps = book([quiet])
    assert all(step.tokens.get("zero_signal", 0) == 0 for step in steps.values())
    assert steps[4].loss_terms["kl"] == 0  # paid in the advantages, not in the loss
    assert steps[4].kl != 0
    first = make("killed")
    first.kill, first.at_step = "after the step", 5
    with pytest.raises(KilledError):
        first.live()
    second = make("killed")
    assert bytes_of(second.live(seed=7)) == expected
    assert book([first, second]) == steps
