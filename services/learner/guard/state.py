"""What the guard remembers from step to step.

Invariant: it survives as JSON (`to_state`, `from_state`), so that a resumed run decides as the uninterrupted one.
It must outlive a roll-back: what was learnt about the failure is not undone with the weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

Recent = tuple[tuple[int, float], ...]
"""(step, mean reward) of recent steps, the oldest first."""


@dataclass(frozen=True, slots=True)
class GuardState:
    """A stage begins with an empty one: another objective has other metrics, and its checkpoints are its own."""

    streaks: Mapping[str, int] = field(default_factory=dict)
    """Steps in a row by bound (and domain); a bound that holds is absent."""
    first_out: int | None = None
    """The step at which the running trouble began."""
    rewards: Mapping[str, Recent] = field(default_factory=dict)
    """By domain."""
    rate_factor: float = 1.0
    quiet: int = 0
    """Steps in a row without any crossing."""
    skips: int = 0
    """Batches skipped in a row."""
    roll_backs: int = 0
    """In this stage."""
    last_target: int | None = None
    """The checkpoint that the last roll-back wrote, until a newer one is good."""
    good: tuple[int, ...] = ()
    """Steps of complete checkpoints whose weights a later step has measured and found in bounds, ascending."""
    unproven: tuple[int, ...] = ()
    """Steps of later ones, whose weights nothing has measured yet: a step is measured before its own update."""

    def to_state(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> GuardState:
        rewards = {
            name: tuple((int(step), float(value)) for step, value in recent)
            for name, recent in state["rewards"].items()
        }
        steps = {name: tuple(state.get(name, ())) for name in ("good", "unproven")}
        return cls(**{**state, "rewards": rewards, **steps})
