"""The guard's state machine: it sees every step before its update is applied and says what to do with it.

Invariant: an action needs its bound to be crossed `patience` steps in a row. A roll-back goes to a checkpoint whose
weights were measured and found in bounds, or to the one that the stage began with, and never for ever: after `max_roll_backs`, or without such a checkpoint, or after
`max_skips` skipped batches in a row, the run pauses and says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from services.learner.guard.bounds import Bound, bounds_of
from services.learner.guard.culprits import culprits
from services.learner.guard.decision import SEVERITY, Action, Crossing, Decision
from services.learner.guard.facts import StepFacts
from services.learner.guard.state import GuardState, Recent
from shared.settings import GuardSettings


@dataclass(frozen=True, slots=True)
class _Reading:
    """A value to be held against a bound."""

    bound: Bound
    value: float
    domain: str = ""
    baseline: float = 0.0

    @property
    def key(self) -> str:
        return f"{self.bound.key} {self.domain}".rstrip()


class Guard:
    """Bounds and rules of one run; all state is in `GuardState`."""

    def __init__(self, settings: GuardSettings) -> None:
        self._settings = settings
        self._bounds = bounds_of(settings)

    def begun(self, step: int) -> GuardState:
        """A stage begins with the checkpoint of `step`: there is none better to go back to."""
        return GuardState(good=(step,))

    def checkpointed(self, state: GuardState, step: int, kept: Iterable[int] | None = None) -> GuardState:
        """A checkpoint that covers the steps up to `step` is complete; `kept` are all that still exist.

        Its weights were made by the update of that step, which nothing has measured: the next step does.
        """
        return _only(replace(state, unproven=(*state.unproven, step)), kept)

    def restored(self, state: GuardState, step: int, kept: Iterable[int] | None = None) -> GuardState:
        """The roll-back's own checkpoint, that of `step`, is complete: it stands for the one that it came from."""
        good = {known for known in state.good if known != state.last_target} | {step}
        return _only(replace(state, good=tuple(sorted(good)), last_target=step), kept)

    def observe(self, state: GuardState, facts: StepFacts) -> tuple[GuardState, Decision]:
        """Called once a step, after the gradient and before the update."""
        readings = list(self._readings(state, facts))
        out = [reading for reading in readings if reading.bound.crossed(reading.value)]
        crossings = [self._crossing(state, reading, facts) for reading in out]
        due = tuple(crossing for crossing in crossings if crossing.due)
        watched = tuple(crossing for crossing in crossings if not crossing.due)
        action: Action = max((crossing.action for crossing in due), key=SEVERITY.index, default="continue")
        measured = {reading.key for reading in readings}
        streaks = {key: n for key, n in state.streaks.items() if key not in measured}
        streaks |= {r.key: 0 if c.due else c.streak for r, c in zip(out, crossings, strict=True)}
        running = {key: n for key, n in streaks.items() if n}
        first = facts.step if state.first_out is None else state.first_out
        # A roll-back lowers the rate itself.
        lower = action != "roll_back" and any(crossing.action == "lower_rate" for crossing in due)
        after = replace(
            self._rated(state, bool(crossings), lower),
            streaks=running,
            first_out=first if crossings or running else None,
            unproven=() if crossings else state.unproven,
        )
        if facts.metrics and after.first_out is None:
            after = _proven(after)
        return self._settled(after, facts, action, Decision(facts.step, crossings=due, watched=watched))

    def _readings(self, state: GuardState, facts: StepFacts) -> Iterator[_Reading]:
        for bound in self._bounds:
            if bound.metric == "not_finite":
                wrong = sum(not math.isfinite(value) for value in facts.metrics.values())
                yield _Reading(bound, facts.metrics.get("not_finite", 0.0) + wrong)
            elif bound.metric != "reward_jump":
                if bound.metric in facts.metrics:
                    yield _Reading(bound, facts.metrics[bound.metric])
            else:
                for domain, mean in sorted(facts.rewards.items()):
                    recent = state.rewards.get(domain, ())
                    if len(recent) * 2 >= self._settings.window:
                        baseline = sum(value for _, value in recent) / len(recent)
                        yield _Reading(bound, mean - baseline, domain, baseline)

    def _crossing(self, state: GuardState, reading: _Reading, facts: StepFacts) -> Crossing:
        bound = reading.bound
        return Crossing(
            metric=bound.metric,
            domain=reading.domain,
            value=reading.value,
            limit=bound.limit,
            side=bound.side,
            streak=state.streaks.get(reading.key, 0) + 1,
            patience=bound.patience,
            action=bound.action,
            trajectories=culprits(
                facts.contributions,
                bound,
                self._settings.named,
                domain=reading.domain,
                baseline=reading.baseline,
                value=reading.value,
            ),
        )

    def _rated(self, state: GuardState, out: bool, lower: bool) -> GuardState:
        """The rate goes down at once and comes back step by step."""
        if lower:
            return replace(state, rate_factor=self._lowered(state.rate_factor), quiet=0)
        if out:
            return replace(state, quiet=0)
        quiet = state.quiet + 1
        if quiet < self._settings.recovery_steps or state.rate_factor >= 1:
            return replace(state, quiet=quiet)
        return replace(state, quiet=0, rate_factor=min(1.0, state.rate_factor / self._settings.rate_factor))

    def _lowered(self, factor: float) -> float:
        return max(self._settings.lowest_rate, factor * self._settings.rate_factor)

    def _settled(
        self, state: GuardState, facts: StepFacts, action: Action, decision: Decision
    ) -> tuple[GuardState, Decision]:
        if action == "roll_back":
            return self._rolled_back(state, decision)
        if action == "skip_batch":
            skips = state.skips + 1
            if skips > self._settings.max_skips:
                because = f"{self._settings.max_skips} batches in a row were skipped: it is not the data"
                return replace(state, skips=0), replace(
                    decision, action="pause", because=because, rate_factor=state.rate_factor
                )
            # Its rewards are no measure of the next ones either.
            return replace(state, skips=skips), replace(
                decision, action=action, rate_factor=state.rate_factor
            )
        rewards = state.rewards if action == "pause" else self._remembered(state.rewards, facts)
        return replace(state, skips=0, rewards=rewards), replace(
            decision, action=action, rate_factor=state.rate_factor
        )

    def _rolled_back(self, state: GuardState, decision: Decision) -> tuple[GuardState, Decision]:
        """To the newest good checkpoint; if that one led here before, to the one before it."""
        because = ""
        if state.roll_backs >= self._settings.max_roll_backs:
            because = f"{state.roll_backs} roll-backs in this stage did not help"
        elif not state.good:
            because = "no good checkpoint to go back to"
        if because:
            # What comes after somebody's look is another row of batches.
            return replace(state, skips=0), replace(
                decision, action="pause", because=because, rate_factor=state.rate_factor
            )
        older = [step for step in state.good if step != state.last_target]
        target = older[-1] if older else state.good[-1]
        after = replace(
            state,
            streaks={},
            first_out=None,
            rewards=_until(state.rewards, target),
            rate_factor=self._lowered(state.rate_factor),
            quiet=0,
            skips=0,
            roll_backs=state.roll_backs + 1,
            last_target=target,
            good=tuple(step for step in state.good if step <= target),
            unproven=(),
        )
        return after, replace(
            decision, action="roll_back", roll_back_to=target, rate_factor=after.rate_factor
        )

    def _remembered(self, rewards: Mapping[str, Recent], facts: StepFacts) -> dict[str, Recent]:
        kept = dict(rewards)
        for domain, mean in facts.rewards.items():
            if math.isfinite(mean):
                kept[domain] = (*kept.get(domain, ()), (facts.step, mean))[-self._settings.window :]
        return kept


def _proven(state: GuardState) -> GuardState:
    """The weights that were measured are in bounds, and so are their checkpoints."""
    if not state.unproven:
        return state
    good = tuple(sorted({*state.good, *state.unproven}))
    return replace(state, good=good, unproven=(), last_target=None)


def _only(state: GuardState, kept: Iterable[int] | None) -> GuardState:
    if kept is None:
        return state
    there = set(kept)
    return replace(
        state,
        good=tuple(step for step in state.good if step in there),
        unproven=tuple(step for step in state.unproven if step in there),
    )


def _until(rewards: Mapping[str, Recent], step: int) -> dict[str, Recent]:
    """What was measured after `step` is of a policy that is gone."""
    kept = {domain: tuple(item for item in recent if item[0] <= step) for domain, recent in rewards.items()}
    return {domain: recent for domain, recent in kept.items() if recent}
