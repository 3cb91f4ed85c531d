"""Control: what a tool or the scheduler tells every service of a run."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field

from shared.contracts.base import Message, Part

ControlKind = Literal["end", "abandon"]
"""end: the run is complete, every service leaves. abandon: give up the groups in `groups`."""


class DomainResult(Part):
    passed: int = 0
    count: int = 0
    faulted: int = 0
    mean_reward: float = 0.0


class Evaluation(Message):
    """One evaluation on held-out seeds, complete. Travels on `control` with its own key."""

    SCHEMA: ClassVar[str] = "temper.evaluation"

    run_id: str
    name: str
    """`start`, `<stage>-<n>`, `end`."""
    stage_index: int
    step: int
    first_version: int
    last_version: int
    domains: dict[str, DomainResult]
    seconds: float = 0.0
    created_ms: int = 0

    def key(self) -> str:
        return f"{self.run_id}/evaluation/{self.name}"


class Control(Message):
    SCHEMA: ClassVar[str] = "temper.control"

    run_id: str
    kind: ControlKind
    reason: str = ""
    groups: tuple[str, ...] = ()
    body: dict[str, Any] = Field(default_factory=dict)
    created_ms: int = 0

    def key(self) -> str:
        suffix = f"/{self.groups[0]}" if self.groups else ""
        return f"{self.run_id}/{self.kind}{suffix}"
