"""Reward: a verdict first, a number second.

Invariant (5 of the design): a fault carries no reward and is never trained on; everything else carries one.
"""

from __future__ import annotations

import json
import math
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from shared.contracts.base import Message
from shared.contracts.slot import Purpose, Slot, Stage

Verdict = Literal["passed", "failed", "partial", "unverifiable", "infrastructure", "timeout_infra"]
FAULTS: frozenset[str] = frozenset({"infrastructure", "timeout_infra"})
"""Ours, not the policy's: retried, then dead-lettered."""
VARYING = frozenset({"worker_id", "wall_seconds", "cpu_seconds", "attempts", "created_ms", "stream_flags"})
"""Fields that say who judged, when, at which delivery, for how long and among what else: two verdicts on one
trajectory differ in nothing but these."""


class Reward(Message):
    SCHEMA: ClassVar[str] = "temper.reward"

    trajectory_id: str
    slot: Slot
    stage: Stage
    stage_index: int = Field(ge=0)
    purpose: Purpose
    domain: str
    domain_version: int = Field(ge=1)
    verdict: Verdict
    reward: float | None = None
    """In [0, 1]; None for faults and `unverifiable`."""
    components: dict[str, float] = Field(default_factory=dict)
    reason: str = ""
    flags: tuple[str, ...] = ()
    """What detectors saw in this attempt by itself."""
    stream_flags: tuple[str, ...] = ()
    """What the auditor saw across attempts at that moment: it depends on what else had been judged."""
    policy_version: int = -1
    """The newest version that sampled a token of it."""
    verifier_version: str = ""
    worker_id: str = ""
    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0
    attempts: int = Field(default=1, ge=1)
    created_ms: int = 0

    @model_validator(mode="after")
    def _faults_carry_no_number(self) -> Reward:
        unpaid = self.verdict in FAULTS or self.verdict == "unverifiable"
        if unpaid and self.reward is not None:
            raise ValueError(f"verdict {self.verdict!r} carries reward {self.reward}: it must carry none")
        if not unpaid and (
            self.reward is None or not math.isfinite(self.reward) or not 0 <= self.reward <= 1
        ):
            raise ValueError(f"verdict {self.verdict!r} carries reward {self.reward}: it must be in [0, 1]")
        return self

    @property
    def is_fault(self) -> bool:
        return self.verdict in FAULTS

    def key(self) -> str:
        return self.slot.group_id

    def stable_bytes(self) -> bytes:
        """The record without `VARYING`, as canonical JSON (sorted keys, ASCII, no spaces): a function of the
        trajectory, the domain and the verifier's version alone."""
        body = self.model_dump(mode="json", exclude=set(VARYING))
        return json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode("ascii")
