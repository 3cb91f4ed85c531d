"""What the guard decides, in a form that can be acted on, recorded and read.

Invariant: a decision other than `continue` names the metric, its value, the bound, and the trajectories that
contributed most.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Action = Literal["continue", "lower_rate", "skip_batch", "roll_back", "pause"]
SEVERITY: tuple[Action, ...] = ("continue", "lower_rate", "skip_batch", "roll_back", "pause")
"""Of several actions the last one here is taken. A pause comes after a roll-back: a person looks at it as it is."""


@dataclass(frozen=True, slots=True)
class Crossing:
    """One bound that a step is out of, for `streak` steps in a row."""

    metric: str
    domain: str
    """Of a reward; empty for what has no domain."""
    value: float
    limit: float
    side: str
    streak: int
    patience: int
    action: Action
    trajectories: tuple[str, ...]
    """Those that contributed most, the worst first."""

    @property
    def due(self) -> bool:
        return self.streak >= self.patience

    def words(self) -> str:
        name = f"{self.metric} of {self.domain}" if self.domain else self.metric
        side = "beyond ±" if self.side == "either" else f"{self.side} "
        for_steps = f" for {self.streak} steps" if self.streak > 1 else ""
        by = f" ({', '.join(self.trajectories)})" if self.trajectories else ""
        return f"{name} {self.value:.4g} is {side}{self.limit:g}{for_steps}{by}"


@dataclass(frozen=True, slots=True)
class Decision:
    """`crossings` caused the action; `watched` are out of bounds within their patience."""

    step: int
    action: Action = "continue"
    crossings: tuple[Crossing, ...] = ()
    watched: tuple[Crossing, ...] = ()
    rate_factor: float = 1.0
    """Times the stage's learning rate, from this step on."""
    roll_back_to: int | None = None
    """The step of the checkpoint whose weights and moments come back."""
    because: str = ""
    """Why the action is another than the bounds declare; empty where it is theirs."""

    @property
    def drops(self) -> bool:
        """Whether the gradient of this step is not applied."""
        return self.action in ("skip_batch", "roll_back", "pause")

    def words(self) -> str:
        """One line for the log and the control topic."""
        what = {
            "continue": "goes on",
            "lower_rate": f"learning rate times {self.rate_factor:g}",
            "skip_batch": "batch skipped",
            "roll_back": f"rolled back to the checkpoint of step {self.roll_back_to}",
            "pause": "paused",
        }[self.action]
        causes = "; ".join(crossing.words() for crossing in self.crossings or self.watched)
        because = f" ({self.because})" if self.because else ""
        return (
            f"guard, step {self.step}: {what}{because}: {causes}" if causes else f"step {self.step}: {what}"
        )
