"""The guard at one step: what was measured in, a decision out.

Invariant: the guard's own state changes only when the step is booked or refused, so a step that was abandoned and
comes again is decided the same.
"""

from __future__ import annotations

from collections.abc import Sequence

from services.learner.batching import Batch
from services.learner.booking import rewards_by_domain
from services.learner.guard.contributions import Owner, contributions
from services.learner.guard.decision import Decision
from services.learner.guard.facts import StepFacts
from services.learner.guard.guard import Guard
from services.learner.guard.state import GuardState
from services.learner.intake.groups import JudgedGroup
from services.learner.metrics import StepMetrics, TokenRecord


class Ruling:
    """Decides on step number `step`, of these groups. `referred`: there is a reference policy."""

    def __init__(
        self,
        guard: Guard,
        state: GuardState,
        step: int,
        groups: Sequence[JudgedGroup],
        batch: Batch,
        *,
        referred: bool,
    ) -> None:
        self._guard = guard
        self._step = step
        self._rewards = {name: reward.mean for name, reward in rewards_by_domain(list(groups)).items()}
        self._owners = _owners(groups, batch)
        self._sampled = not batch.demonstrated
        self._referred = referred
        self.state = state
        """After the decision."""

    def decide(self, metrics: StepMetrics, record: TokenRecord) -> Decision:
        """Called once, between the gradient and the update."""
        tokens, attempts = record.facts()
        facts = StepFacts(
            step=self._step,
            metrics=metrics.measured(sampled=self._sampled, referred=self._referred),
            rewards=self._rewards,
            contributions=contributions(self._owners, attempts, tokens),
        )
        self.state, decision = self._guard.observe(self.state, facts)
        return decision


def _owners(groups: Sequence[JudgedGroup], batch: Batch) -> list[Owner]:
    """In the order of the batch's attempts; then those whose groups have no gradient, for what their rewards say."""
    slots = {slot.trajectory.trajectory_id: slot for group in groups for slot in group.usable_slots()}
    learnt = [attempt.trajectory_id for attempt in batch.attempts]
    silent = [name for name in slots if name not in set(learnt)]
    return [
        Owner(
            name,
            slots[name].trajectory.domain.name,
            None if (reward := slots[name].reward) is None else reward.reward,
        )
        for name in [*learnt, *silent]
    ]
