"""Joins trajectories and rewards into the slots of groups.

Invariant: a slot is filled once, by the first trajectory whose pair is complete. Attempts are fenced: what comes
later for a filled slot is told apart as a duplicate and changes nothing. A group that is complete with some of its
slots takes nothing more, and which ones is remembered: a replay in another order fills the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

from services.learner.intake.offsets import Place
from shared.contracts import Reward, Trajectory

M = TypeVar("M", Trajectory, Reward)

Joined = Literal["waits", "filled", "completed", "repeated", "duplicate", "invalid", "surplus"]
"""repeated: the same record again. duplicate: another attempt for a slot that is filled. invalid: a record for a place
that the run does not have. surplus: an attempt for a slot that its group, which is complete, does without."""


@dataclass(frozen=True, slots=True)
class Arrival(Generic[M]):
    """A record: its message, where it lay, and the trace context it came with."""

    message: M
    place: Place
    traceparent: str = ""


@dataclass(frozen=True, slots=True)
class FilledSlot:
    """One attempt with its verdict. A demonstration and an infrastructure fault have no reward."""

    trajectory: Trajectory
    reward: Reward | None
    places: tuple[Place, ...]
    traceparent: str

    @property
    def faulted(self) -> bool:
        if self.trajectory.stop_reason == "infrastructure":
            return True
        return self.reward is not None and self.reward.is_fault

    @property
    def ended(self) -> bool:
        """It is an attempt that came to its end: it counts towards what its group needs."""
        return not self.faulted and self.trajectory.stop_reason != "cancelled"


def needs_no_reward(trajectory: Trajectory) -> bool:
    """Demonstrations are not judged; of an attempt that could not be made, or not to its end, nothing is."""
    unmade = trajectory.stop_reason in ("infrastructure", "cancelled")
    return trajectory.sampling_mode == "demonstration" or unmade


@dataclass(slots=True)
class OpenGroup:
    """A group on its way: filled slots, and halves that wait for their other half.

    `size` slots; complete when all are filled, or `enough` of them with attempts that ended. After a restart `chosen`
    are the slots with which it was complete before: it is so again with these and no others.
    """

    group_id: str
    stage_index: int
    size: int
    enough: int = 0
    """0: all."""
    chosen: frozenset[int] = frozenset()
    slots: dict[int, FilledSlot] = field(default_factory=dict)
    trajectories: dict[str, Arrival[Trajectory]] = field(default_factory=dict)
    rewards: dict[str, Arrival[Reward]] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        if self.chosen:
            return self.chosen <= self.slots.keys()
        if len(self.slots) == self.size:
            return True
        return 0 < self.enough <= sum(slot.ended for slot in self.slots.values())

    def does_without(self, sample_index: int) -> bool:
        """Whether the group is complete, or will be, without this slot."""
        if sample_index in self.slots:
            return False
        return self.complete or bool(self.chosen and sample_index not in self.chosen)

    def places(self) -> tuple[Place, ...]:
        """Every record that this group holds on to."""
        held = [place for slot in self.slots.values() for place in slot.places]
        held += [arrival.place for arrival in self.trajectories.values()]
        held += [arrival.place for arrival in self.rewards.values()]
        return tuple(held)

    def add_trajectory(self, arrival: Arrival[Trajectory]) -> Joined:
        trajectory = arrival.message
        filled = self.slots.get(trajectory.slot.sample_index)
        if filled is not None:
            same = filled.trajectory.trajectory_id == trajectory.trajectory_id
            return "repeated" if same else "duplicate"
        if self.does_without(trajectory.slot.sample_index):
            return "surplus"
        if trajectory.trajectory_id in self.trajectories:
            return "repeated"
        self.trajectories[trajectory.trajectory_id] = arrival
        if needs_no_reward(trajectory) or trajectory.trajectory_id in self.rewards:
            return self._fill(trajectory.trajectory_id)
        return "waits"

    def add_reward(self, arrival: Arrival[Reward]) -> Joined:
        reward = arrival.message
        if reward.slot.sample_index in self.slots or reward.trajectory_id in self.rewards:
            return "repeated"
        if self.does_without(reward.slot.sample_index):
            return "surplus"
        self.rewards[reward.trajectory_id] = arrival
        return self._fill(reward.trajectory_id) if reward.trajectory_id in self.trajectories else "waits"

    def _fill(self, trajectory_id: str) -> Joined:
        attempt = self.trajectories.pop(trajectory_id)
        verdict = self.rewards.pop(trajectory_id, None)
        self.slots[attempt.message.slot.sample_index] = FilledSlot(
            trajectory=attempt.message,
            reward=verdict.message if verdict else None,
            places=(attempt.place, verdict.place) if verdict else (attempt.place,),
            traceparent=(verdict.traceparent if verdict else "") or attempt.traceparent,
        )
        return "completed" if self.complete else "filled"

    def losers(self, sample_index: int) -> tuple[list[Arrival[Trajectory]], list[Arrival[Reward]]]:
        """Halves of other attempts at a slot that is filled, taken out."""
        late = [a for a in self.trajectories.values() if a.message.slot.sample_index == sample_index]
        unheard = [a for a in self.rewards.values() if a.message.slot.sample_index == sample_index]
        for attempt in late:
            del self.trajectories[attempt.message.trajectory_id]
        for verdict in unheard:
            del self.rewards[verdict.message.trajectory_id]
        return late, unheard
