"""What a recorded step was computed from.

Invariant: a batch is the groups that took a place in it, in the order in which it took them, each with the attempts
that filled its slots: all of it as the step's record says. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from services.learner.objectives.presets import Objective
from shared.contracts import GroupFate, Step

_TAUGHT = frozenset(("trained", "skipped", "unpaired"))


@dataclass(frozen=True, slots=True)
class RecordedGroup:
    group_id: str
    attempts: Mapping[int, str]
    """Sample index → the trajectory that filled the slot."""


def recorded_batch(step: Step, objective: Objective) -> tuple[RecordedGroup, ...]:
    """The batch of `step`; empty for a step that took other weights. `objective`: that of the recorded run."""
    return tuple(
        RecordedGroup(
            group.group_id,
            {index: name for index, name in zip(group.samples, group.trajectory_ids, strict=True) if name},
        )
        for group in step.groups
        if _took_part(group, objective)
    )


def _took_part(group: GroupFate, objective: Objective) -> bool:
    """A step's record also books groups that were dropped before it. One without signal had a place in the batch if
    the objective does not draw another instead, and at least two attempts of it were usable."""
    if _TAUGHT.intersection(group.fates):
        return True
    return not objective.skips_ties and group.fates.count("zero_signal") >= 2
