"""The learner in virtual time.

Real: `Intake` (slots, groups, staleness, fates), `judge`, `may_read_ahead`, the order of step, policy and book.
Modelled: a step takes seconds in proportion to the tokens that it reads, a checkpoint a share of that.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from benchmarks.simulated.clock import VirtualClock
from services.learner.intake.attempts import Terms, oldest_version
from services.learner.intake.groups import JudgedGroup
from services.learner.intake.intake import Intake
from services.learner.intake.join import Arrival
from services.learner.intake.ledger import prompt_tokens
from services.learner.intake.offsets import Place
from services.learner.intake.reader import may_read_ahead
from services.learner.objectives.presets import objective_of
from shared.contracts import Message, Notice, Reward, Step, Trajectory
from shared.settings import Settings

CHECKPOINT_SHARE = 0.03
"""Seconds of a checkpoint and its announcement, of those of the step."""


@dataclass(slots=True)
class Told:
    """What a run came to, from the end of its first step on."""

    ends: list[float] = field(default_factory=list)
    busy: list[float] = field(default_factory=list)
    """Seconds of work in each step."""
    lags: Counter[int] = field(default_factory=Counter)
    """Trained attempts by how many versions their oldest token was behind."""
    tokens: Counter[str] = field(default_factory=Counter)
    """Sampled tokens by fate."""

    @property
    def wall_s(self) -> float:
        return self.ends[-1] - self.ends[0]

    @property
    def idle_share(self) -> float:
        return 1 - sum(self.busy[1:]) / self.wall_s


class SimulatedLearner:
    """`tell` sends notices and steps; `publish` a new version."""

    def __init__(
        self,
        settings: Settings,
        clock: VirtualClock,
        *,
        token_s: float,
        fixed_s: float = 0.0,
        tell: Callable[[Message], None],
        publish: Callable[[int], None],
    ) -> None:
        self._settings, self._clock, self._token_s, self._fixed_s = settings, clock, token_s, fixed_s
        self._tell, self._publish = tell, publish
        self._stage = settings.stages[0]
        self._intake = Intake(settings.run.name, [self._stage.samples], enough=[self._stage.enough])
        self._unread: deque[Trajectory | Reward] = deque()
        self._offset = 0
        self._working = False
        self.version = 0
        self.told = Told()
        self._terms = self._make_terms()

    @property
    def finished(self) -> bool:
        return self.version >= self._stage.steps

    def receive(self, *messages: Trajectory | Reward) -> None:
        self._unread.extend(messages)
        self._read()
        if not self._working:
            self._advance()

    def _read(self) -> None:
        """While a step computes, only so far ahead; while a batch is missing groups, all there is."""
        limit = self._settings.learner.max_buffered_groups
        while self._unread and (not self._working or may_read_ahead(self._intake.buffered, limit)):
            message, self._offset = self._unread.popleft(), self._offset + 1
            if isinstance(message, Trajectory):
                self._intake.trajectory(Arrival(message, Place("trajectories", 0, self._offset)))
            else:
                self._intake.reward(Arrival(message, Place("rewards", 0, self._offset)))

    def _advance(self) -> None:
        if self.finished:
            return
        fates, _, _ = self._intake.review(0, self._terms)
        if fates:
            self._tell(Notice(run_id=self._settings.run.name, groups=tuple(fates)))
        groups = self._intake.batch(0, self._terms, self._stage.groups_per_step)
        if groups is not None:
            self._working = True
            work = self._fixed_s or self._token_s * sum(_tokens(group) for group in groups)
            self._clock.after(work * (1 + CHECKPOINT_SHARE), lambda: self._step(groups, work))

    def _step(self, groups: list[JudgedGroup], work: float) -> None:
        for group in groups:
            self.told.lags.update(
                self.version - oldest_version(slot.trajectory) for slot in group.usable_slots()
            )
            self._intake.resolve(group.group_id, group.fates())
        self.version += 1
        self._terms = self._make_terms()
        tokens, _ = self._intake.ledger.take()
        self.told.tokens.update(tokens)
        self.told.ends.append(self._clock.now)
        self.told.busy.append(work * (1 + CHECKPOINT_SHARE))
        self._publish(self.version)
        self._tell(
            Step(
                run_id=self._settings.run.name,
                step=self.version,
                stage="rl",
                stage_index=0,
                stage_step=self.version,
                policy_version=self.version,
                groups=self._intake.take_fates(),
            )
        )
        self._working = False
        self._read()
        self._advance()

    def _make_terms(self) -> Terms:
        return Terms(
            objective=objective_of(self._stage.objective, "rl", {}),
            vocabulary=1 << 16,
            max_tokens=1 << 16,
            version=self.version,
            max_lag=self._settings.scheduler.max_lag,
            temperature=self._stage.temperature,
        )


def _tokens(group: JudgedGroup) -> int:
    """That the learner reads: the prompt once, each usable attempt's own tokens."""
    slots = group.usable_slots()
    own = sum(slot.trajectory.sampled_tokens() for slot in slots)
    return own + (prompt_tokens(slots[0].trajectory) if slots else 0)
