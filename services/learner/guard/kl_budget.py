"""The KL budget of a stage: what the KL costs, and against which reference it is measured.

Invariant: an adapted coefficient stays within its floor and ceiling, moves by at most a fifth of attempts/horizon a
step (arXiv 1909.08593, section 2.2), and never moves away from the target. A measurement that is not a number changes
nothing. A frozen reference is never due for renewal.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from services.learner.objectives.kl import adapted_coefficient
from services.learner.objectives.objective import Objective


@dataclass(frozen=True, slots=True)
class KlState:
    coefficient: float
    since_refresh: int = 0
    """Steps that the current reference has served."""


@dataclass(frozen=True, slots=True)
class KlBudget:
    """The rules of one stage. `target` 0: a fixed coefficient; `refresh_every` 0: a frozen reference."""

    initial: float
    target: float = 0.0
    horizon: int = 10_000
    floor: float = 0.0
    ceiling: float = math.inf
    refresh_every: int = 0

    @classmethod
    def of(cls, objective: Objective) -> KlBudget:
        return cls(
            initial=objective.kl_coefficient,
            target=objective.kl_target,
            horizon=objective.kl_horizon,
            floor=objective.kl_floor,
            ceiling=objective.kl_ceiling,
            refresh_every=objective.reference_refresh_steps,
        )

    @property
    def needs_reference(self) -> bool:
        return self.initial > 0

    def begin(self) -> KlState:
        return KlState(self.initial)

    def stepped(self, state: KlState, kl: float, attempts: int) -> KlState:
        """After a step: `kl` is its mean per token, `attempts` how many it learnt from (0: none, nothing measured)."""
        served = replace(state, since_refresh=state.since_refresh + 1)
        if self.target <= 0 or attempts <= 0 or not math.isfinite(kl):
            return served
        # An update by more than all of it would turn its sign.
        adapted = adapted_coefficient(
            state.coefficient, kl, self.target, min(attempts, self.horizon), self.horizon
        )
        return replace(served, coefficient=min(self.ceiling, max(self.floor, adapted)))

    def refresh_due(self, state: KlState) -> bool:
        """Asked where a checkpoint is made: a reference must be durable before it is measured against."""
        return self.needs_reference and 0 < self.refresh_every <= state.since_refresh

    def refreshed(self, state: KlState) -> KlState:
        """The policy of this moment is the reference now; the price stays."""
        return replace(state, since_refresh=0)
