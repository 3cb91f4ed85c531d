"""Control: what a tool, the scheduler or an auditing verifier tells every service of a run.

Invariant: hold and lift of one domain share a key, and so do pause and resume: the compacted topic keeps the newest
word.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from shared.contracts.base import Message, Part

ControlKind = Literal["end", "abandon", "hold", "lift", "pause", "resume"]
"""end: the run is complete, every service leaves. abandon: give up the groups in `groups`.
hold: schedule nothing more of `domain` until a lift; `reason` says why, `body` holds the evidence.
pause: the learner's guard takes no more batches after step `body["step"]`, until a resume of that step or a later one."""


class DomainResult(Part):
    passed: int = 0
    count: int = 0
    faulted: int = 0
    mean_reward: float = 0.0
    fault: str = ""
    """The first of the faults, in words; empty where there was none or none left a word."""


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
    notes: tuple[str, ...] = ()
    """What a reader of its rates must know: domains that have fewer different instances than were wanted."""
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
    domain: str = ""
    """Of a hold or lift: the name that tasks carry."""
    body: dict[str, Any] = Field(default_factory=dict)
    created_ms: int = 0

    @property
    def step(self) -> int:
        """Of a pause or resume: the step that it is about; -1 where none is named."""
        named = self.body.get("step")
        return named if isinstance(named, int) else -1

    @model_validator(mode="after")
    def _names_its_domain(self) -> Control:
        if (self.kind in ("hold", "lift")) != bool(self.domain):
            raise ValueError(
                f"control {self.kind!r} names domain {self.domain!r}: hold and lift name one, others none"
            )
        return self

    def key(self) -> str:
        if self.domain:
            return f"{self.run_id}/domain/{self.domain}"
        if self.kind in ("pause", "resume"):
            return f"{self.run_id}/guard"
        suffix = f"/{self.groups[0]}" if self.groups else ""
        return f"{self.run_id}/{self.kind}{suffix}"
