"""What is taken between two steps for a checkpoint, and what may be told once it is complete.

Invariant: an announcement is made from what the checkpoint holds, so a restart tells the same again.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from services.learner.intake.ledger import effective_throughput
from services.learner.stages import Progress
from shared.contracts import Policy, Step, decode, schema_header


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a checkpoint will say."""

    progress: Progress
    made_by: Progress
    """Where the run was when the weights were made: differs at the end of a stage."""
    state: dict[str, Any]
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Announcement:
    """What may be told once a checkpoint is complete: the policy first, then the steps that it covers."""

    policy: Policy
    steps: tuple[Step, ...]
    seconds: float = 0.0
    """It took to write what it tells of."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The last stage whose `start_from` was taken, and the version that it made; stage −1: none yet."""

    stage_index: int = -1
    version: int = 0


def read_message(kind: type[Any], body: Any) -> Any:
    """A message as it lies in a checkpoint's state."""
    return decode(schema_header(kind), json.dumps(body).encode())


def with_seconds(steps: tuple[Step, ...], **seconds: float) -> tuple[Step, ...]:
    """The steps with what was not known yet when their checkpoint was written."""
    return tuple(step.model_copy(update={"seconds": {**step.seconds, **seconds}}) for step in steps)


def with_total(step: Step) -> Step:
    """The step with its whole time, and what it got done in it."""
    total = sum(step.seconds.values())
    return step.model_copy(
        update={
            "seconds": {**step.seconds, "total": total},
            "effective_throughput": effective_throughput(step.trained_trajectories, total),
        }
    )
