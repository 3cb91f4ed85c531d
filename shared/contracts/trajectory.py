"""Trajectory: one attempt, token-exact.

Invariant (7 of the design): ids, loss mask, log-probabilities, version spans and role spans of a sequence
have one length. The contract refuses anything else, so no consumer has to.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from shared.contracts.arrays import Float32Array, Int32Array, MaskArray
from shared.contracts.base import Message, Part
from shared.contracts.slot import Purpose, Slot, Stage
from shared.contracts.task import DomainRef, Role, Sampling
from shared.contracts.tool_call import ToolCall

StopReason = Literal[
    "stop",
    "length",
    "turns",
    "deadline",
    "demonstration",
    "infrastructure",
    "cancelled",
    "tokens",
    "context",
    "calls",
]
"""stop: the policy ended it (its end token without a call, or `submit`). length: one turn reached its token limit.
cancelled: its group had enough attempts without it, and it was cut short.
Limits of the whole attempt: turns, tokens (sampled ones), context (no room for another turn), calls (of tools, or
requests of an agent program that were refused), deadline (wall time)."""
SamplingMode = Literal["sampled", "greedy", "demonstration"]

NOT_SAMPLED = -1
"""The version of a token that no policy sampled (prompt, tool result, demonstration)."""


class VersionSpan(Part):
    length: int = Field(ge=1)
    version: int = Field(ge=NOT_SAMPLED)


class RoleSpan(Part):
    length: int = Field(ge=1)
    role: Role


class Sequence(Part):
    """One context of a trajectory, n tokens.

    token_ids int32[n]; loss_mask uint8[n], 1 where the policy sampled the token (its stop token included);
    logprobs float32[n], natural log, of the sampled token under the unscaled distribution, 0 where the mask is 0.
    """

    token_ids: Int32Array
    loss_mask: MaskArray
    logprobs: Float32Array
    version_spans: tuple[VersionSpan, ...]
    role_spans: tuple[RoleSpan, ...]

    @model_validator(mode="after")
    def _one_length(self) -> Sequence:
        lengths = {
            "token_ids": self.token_ids.size,
            "loss_mask": self.loss_mask.size,
            "logprobs": self.logprobs.size,
            "version_spans": sum(span.length for span in self.version_spans),
            "role_spans": sum(span.length for span in self.role_spans),
        }
        if len(set(lengths.values())) != 1:
            raise ValueError("sequence lengths differ: " + ", ".join(f"{k} {v}" for k, v in lengths.items()))
        if self.loss_mask.size and int(self.loss_mask.max()) > 1:
            raise ValueError(f"loss_mask holds {int(self.loss_mask.max())}: only 0 and 1 are allowed")
        return self

    def versions(self) -> np.ndarray[Any, np.dtype[np.int32]]:
        """int32[n]: the version that sampled each token, NOT_SAMPLED elsewhere."""
        return np.repeat(
            np.array([span.version for span in self.version_spans], dtype=np.int32),
            [span.length for span in self.version_spans],
        )


class Timings(Part):
    """Seconds, each a share of the attempt's wall time."""

    queued: float = 0.0
    policy_wait: float = 0.0
    prefill: float = 0.0
    decode: float = 0.0
    tools: float = 0.0
    total: float = 0.0


class Trajectory(Message):
    SCHEMA: ClassVar[str] = "temper.trajectory"

    trajectory_id: str
    slot: Slot
    attempt: int = Field(ge=1)
    stage: Stage
    stage_index: int = Field(ge=0)
    purpose: Purpose
    workload: str
    priority: str
    domain: DomainRef
    sampling: Sampling
    sampling_mode: SamplingMode
    sequences: tuple[Sequence, ...]
    stop_reason: StopReason
    fault: str = ""
    """Why there is no attempt (stop_reason `infrastructure`), or why nothing could be sampled of one."""
    tool_calls: tuple[ToolCall, ...] = ()
    malformed_calls: int = Field(default=0, ge=0)
    """What looked like a call and could not be read; each was answered with an error."""
    turns: int = Field(default=0, ge=0)
    """Turns that the policy took; 0 where nobody counted (a single answer)."""
    final_answer: str = ""
    """The text of the last assistant turn, special tokens removed: what the verifier reads."""
    artifacts: dict[str, str] = Field(default_factory=dict)
    first_version: int = NOT_SAMPLED
    last_version: int = NOT_SAMPLED
    timings: Timings = Timings()
    worker_id: str = ""
    created_ms: int = 0
    deadline_ms: int = 0

    @model_validator(mode="after")
    def _faults_speak(self) -> Trajectory:
        if self.stop_reason == "infrastructure" and not self.fault:
            raise ValueError("a trajectory with stop_reason 'infrastructure' must say its fault")
        if self.stop_reason not in ("infrastructure", "cancelled") and not self.sequences:
            raise ValueError(f"a trajectory with stop_reason {self.stop_reason!r} has no sequence")
        return self

    def key(self) -> str:
        return self.slot.group_id

    def sampled_tokens(self) -> int:
        return sum(int(sequence.loss_mask.sum()) for sequence in self.sequences)
