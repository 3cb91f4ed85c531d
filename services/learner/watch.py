"""What the learner watches beside its loss: declared bounds, and verifiers that contradict themselves.

Invariant: what is remembered is in every checkpoint, so a resumed run sees and says what the uninterrupted one would.
A decision becomes part of it when its step is booked. A new stage begins with an empty guard.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from services.learner.batching import Batch
from services.learner.guard.contradictions import Consistency, JudgedAnswer
from services.learner.guard.decision import Decision
from services.learner.guard.guard import Guard
from services.learner.guard.state import GuardState
from services.learner.intake.groups import JudgedGroup
from services.learner.intake.join import FilledSlot
from services.learner.ruling import Ruling
from shared.settings import Settings


@dataclass(frozen=True, slots=True)
class Pause:
    """No batch is taken after `step` until somebody says so."""

    step: int
    reason: str


class Watch:
    """The guard of one run with its memory."""

    def __init__(self, settings: Settings, saved: Mapping[str, Any] | None = None) -> None:
        self._guard = Guard(settings.guard)
        self._active = bool(settings.guard.bounds)
        self._keep = settings.learner.keep_checkpoints
        saved = saved or {}
        self._state = GuardState.from_state(saved["guard"]) if saved else GuardState()
        self._consistency = Consistency.from_state(saved.get("consistency", {}))
        self._told = set(saved.get("told", ()))
        pause = saved.get("pause")
        self.pause: Pause | None = Pause(**pause) if pause else None
        self._ruling: Ruling | None = None
        self._rolled_back = False
        self._fresh = not saved
        """No checkpoint of this stage is complete."""

    # Steps

    def ruling(
        self, step: int, groups: Sequence[JudgedGroup], batch: Batch, *, referred: bool
    ) -> Ruling | None:
        """Who decides on this step; None where no bound is declared."""
        self._ruling = (
            Ruling(self._guard, self._state, step, groups, batch, referred=referred) if self._active else None
        )
        return self._ruling

    def refused(self) -> None:
        """The step was not finite and no bound took it: what was seen of it counts."""
        self._settle()

    def booked(self, step: int, decision: Decision | None) -> tuple[str, ...]:
        """The decision stands; what a person should know, a line each."""
        self._settle()
        notes = self._unstable()
        if decision is None or decision.action == "continue":
            return notes
        self._rolled_back = decision.action == "roll_back"
        if decision.action == "pause":
            self.pause = Pause(step, decision.words())
        return (decision.words(), *notes)

    def resume(self, step: int) -> bool:
        """Whether a word on `step` ends the pause."""
        if self.pause is None or step < self.pause.step:
            return False
        self.pause = None
        return True

    def begin_stage(self) -> None:
        self._state, self._rolled_back, self._fresh = GuardState(), False, True

    def _settle(self) -> None:
        if self._ruling is not None:
            self._state, self._ruling = self._ruling.state, None

    # Verifiers

    def judged(self, groups: Iterable[JudgedGroup]) -> None:
        """Complete groups, each once: equal answers must have equal rewards."""
        answers = [answer for group in groups for answer in _answers(group)]
        self._consistency, _ = self._consistency.observe(answers)

    def _unstable(self) -> tuple[str, ...]:
        """Domains that were stable before and are not."""
        found = {one.domain: one.words() for one in self._consistency.unstable()}
        fresh = tuple(words for domain, words in found.items() if domain not in self._told)
        self._told = set(found)
        return fresh

    # Checkpoints

    @property
    def good(self) -> frozenset[int]:
        """Steps of checkpoints that a roll-back may need."""
        return frozenset((*self._state.good, *self._state.unproven)) if self._active else frozenset()

    @property
    def wants_checkpoint(self) -> bool:
        """After a roll-back the restored weights must be durable, and before a pause whatever there is."""
        return self._rolled_back or self.pause is not None

    def covered(self, step: int) -> GuardState:
        """The guard's state once the checkpoint of `step` is complete."""
        if self._fresh:
            return self._guard.begun(step)
        tell = self._guard.restored if self._rolled_back else self._guard.checkpointed
        after = tell(self._state, step)
        # Each is kept for as long as it may be gone back to, so no more are than of all.
        most = max(1, self._keep)
        return tell(self._state, step, (*after.good[-most:], *after.unproven[-most:]))

    def sealed(self, state: GuardState) -> None:
        """Its checkpoint is on its way. If it fails, the learner does, and nothing of this is remembered."""
        self._state, self._rolled_back, self._fresh = state, False, False

    def to_state(self, guard: GuardState) -> dict[str, Any]:
        """JSON, with the guard's state of then."""
        pause = self.pause
        return {
            "guard": guard.to_state(),
            "consistency": self._consistency.to_state(),
            "told": sorted(self._told),
            "pause": {"step": pause.step, "reason": pause.reason} if pause else None,
        }


def _answers(group: JudgedGroup) -> Iterator[JudgedAnswer]:
    for slot in group.usable_slots():
        if slot.reward is not None and slot.reward.reward is not None:
            yield JudgedAnswer(
                domain=slot.trajectory.domain.name,
                group_id=group.group_id,
                identity=_identity(slot),
                trajectory_id=slot.trajectory.trajectory_id,
                reward=slot.reward.reward,
            )


def _identity(slot: FilledSlot) -> str:
    """Everything of an attempt that a verdict may depend on, and which verifier it was."""
    made, reward = slot.trajectory, slot.reward
    seen = [
        made.final_answer,
        made.stop_reason,
        made.artifacts,
        [call.model_dump(exclude={"seconds"}) for call in made.tool_calls],
        [reward.verifier_version, reward.domain_version] if reward else [],
    ]
    return hashlib.sha256(json.dumps(seen, sort_keys=True).encode()).hexdigest()
