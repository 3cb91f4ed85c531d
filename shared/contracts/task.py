"""Task: one group of attempts that the scheduler wants made.

Invariant (6 of the design): a task holds the public part of an instance only. Expected values and hidden
tests are in no field; a demonstration is there only where nothing is sampled.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from shared.contracts.base import Message, Part
from shared.contracts.continuation import Continuation
from shared.contracts.slot import Purpose, Slot, Stage

Role = Literal["system", "user", "assistant", "tool"]


class ChatMessage(Part):
    role: Role
    content: str


class DomainRef(Part):
    """Everything from which the verifier makes the instance again: the answer itself never travels."""

    name: str
    version: int = Field(ge=1)
    seed: int = Field(ge=0)
    difficulty: dict[str, Any] = Field(default_factory=dict)
    instance_digest: str = ""
    """sha256 of the public part; the verifier refuses an instance that came out another way."""
    cell: str = ""
    """The cell of the domain matrix: modality × tools × rounds × verification."""


class Sampling(Part):
    """How to sample. Log-probabilities are always of the unscaled, untruncated distribution."""

    samples: int = Field(default=1, ge=1)
    first_sample_index: int = Field(default=0, ge=0)
    group_size: int = Field(default=1, ge=1)
    """Slots of the whole group, over all its tasks."""
    enough: int = Field(default=0, ge=0)
    """Attempts with which the group is complete: what still runs of it then is cut short. 0: all of them."""
    temperature: float = Field(default=1.0, ge=0)
    """0 is greedy."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    max_tokens: int = Field(default=64, ge=1)
    seed: int | None = None


class Limits(Part):
    turns: int = Field(default=1, ge=1)
    context_tokens: int = Field(default=2048, ge=1)
    wall_seconds: float = Field(default=120.0, gt=0)
    sampled_tokens: int = Field(default=0, ge=0)
    """Of all turns together; 0: turns × sampling.max_tokens, which is of one turn."""
    tool_calls: int = Field(default=0, ge=0)
    """Of all turns together; 0: what the turns allow."""


class Task(Message):
    SCHEMA: ClassVar[str] = "temper.task"

    run_id: str
    group_id: str
    stage: Stage
    stage_index: int = Field(ge=0)
    domain: DomainRef
    workload: str
    priority: str
    purpose: Purpose
    messages: tuple[ChatMessage, ...]
    files: dict[str, str] = Field(default_factory=dict)
    tools: tuple[str, ...] = ()
    demonstration: tuple[ChatMessage, ...] = ()
    """Only in training: what to imitate (`sft`), or the better answer of a pair (`preference`, as sample 0). Rollout
    tokenizes it and samples nothing."""
    rejected: tuple[ChatMessage, ...] = ()
    """Only beside the demonstration of a `preference` task: the worse answer, as sample 1."""
    sampling: Sampling = Sampling()
    limits: Limits = Limits()
    min_policy_version: int = Field(default=0, ge=0)
    """An attempt starts only on a policy at least this new (current − max_lag when it was scheduled)."""
    continuation: Continuation | None = None
    """Of an attempt that another process has begun and handed back; the task is of its slot alone."""
    attempt: int = Field(default=1, ge=1)
    created_ms: int = 0
    deadline_ms: int = 0
    """Wall clock, ms since the epoch, after which nobody wants the result; 0 is none."""

    @model_validator(mode="after")
    def _demonstrations_only_train(self) -> Task:
        if self.demonstration and (self.purpose != "train" or self.stage == "rl"):
            raise ValueError(
                f"a demonstration in a {self.purpose} task of stage {self.stage}: only training of the stages sft and "
                "preference has one"
            )
        pair = bool(self.demonstration) and self.stage == "preference"
        if pair != bool(self.rejected) or (pair and self.sampling.samples != 2):
            raise ValueError(
                "a pair is a demonstration and a rejected answer of a preference task, two samples"
            )
        if self.sampling.first_sample_index + self.sampling.samples > self.sampling.group_size:
            raise ValueError("sampling: first_sample_index + samples passes group_size")
        if self.continuation is not None and (self.demonstration or self.sampling.samples != 1):
            raise ValueError("a continuation is of one sampled slot")
        if self.sampling.enough > self.sampling.group_size:
            raise ValueError("sampling: enough passes group_size")
        return self

    def key(self) -> str:
        return self.group_id

    def slots(self) -> tuple[Slot, ...]:
        first = self.sampling.first_sample_index
        return tuple(
            Slot(run_id=self.run_id, group_id=self.group_id, sample_index=first + i)
            for i in range(self.sampling.samples)
        )
