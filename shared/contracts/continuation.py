"""Continuation: what one process had sampled of an attempt when it handed it back, so that another goes on from there.

Invariant (7 of the design): sampled ids travel with the log-probabilities and versions that they were sampled with, and
with the digest of the context that they follow: whoever goes on proves that it reads the same, or starts again.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from shared.contracts.arrays import Float32Array, Int32Array
from shared.contracts.base import Part
from shared.contracts.tool_call import ToolCall


class SampledTurn(Part):
    """token_ids int32[n], logprobs float32[n], versions int32[n] (of the policy that sampled each), n ≥ 1."""

    token_ids: Int32Array
    logprobs: Float32Array
    versions: Int32Array
    stop_reason: Literal["stop", "length", "cut"]
    """cut: the turn goes on."""
    prefill_s: float = 0.0
    decode_s: float = 0.0

    @model_validator(mode="after")
    def _one_length(self) -> SampledTurn:
        sizes = (self.token_ids.size, self.logprobs.size, self.versions.size)
        if len(set(sizes)) != 1 or not self.token_ids.size:
            raise ValueError(
                f"a sampled turn has ids, logprobs and versions of sizes {sizes}: one size, at least 1"
            )
        return self


class ToolAnswer(Part):
    tool: str
    """Empty: of a call that could not be read."""
    text: str


class ToolTurn(Part):
    """What became of the calls of one turn that did not end the attempt."""

    answers: tuple[ToolAnswer, ...]
    calls: tuple[ToolCall, ...] = ()
    read: int = Field(default=0, ge=0)
    """Calls that were read, whether or not they ran."""


class WorkspaceRef(Part):
    """The tree of a workspace as an object (`shared/sandbox/sessions/packing.py`)."""

    uri: str
    sha256: str
    size_bytes: int = Field(ge=0)


class Continuation(Part):
    hops: int = Field(ge=1)
    """How often the attempt was handed back."""
    turns: tuple[SampledTurn, ...] = ()
    """In order, the last of them perhaps cut. None: it starts again."""
    context_sha256: str = ""
    """Of the context that the last turn follows: its ids as int32, little-endian."""
    tool_turns: tuple[ToolTurn, ...] = ()
    """Of the first turns, where tools are not to run again: what they did is in `workspace`."""
    workspace: WorkspaceRef | None = None
    """As the last of `tool_turns` left it."""

    @model_validator(mode="after")
    def _can_go_on(self) -> Continuation:
        if any(turn.stop_reason == "cut" for turn in self.turns[:-1]):
            raise ValueError("a continuation has a cut turn before its last one")
        if self.turns and not self.context_sha256:
            raise ValueError("a continuation with turns names the context that its last one follows")
        if len(self.tool_turns) > len(self.turns) or bool(self.tool_turns) != (self.workspace is not None):
            raise ValueError(
                "a continuation has answers of tools for its own turns alone, and the workspace after them"
            )
        return self

    @property
    def newest_version(self) -> int:
        """That sampled a token of it; 0 where none did."""
        return max((int(turn.versions.max()) for turn in self.turns), default=0)
