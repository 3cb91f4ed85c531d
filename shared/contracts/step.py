"""Step: what one optimizer step did, and the ledger of every token that came in for it.

Invariant: a step is emitted only after a complete checkpoint covers it; together the steps of the surviving
lineage book every slot exactly once.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from shared.contracts.base import Message, Part
from shared.contracts.slot import Fate, Slot, Stage

StepAction = Literal["continue", "lower_rate", "skip_batch", "roll_back", "pause"]


class GroupFate(Part):
    """One group, resolved as a whole. `samples[i]` became `fates[i]`."""

    group_id: str
    domain: str = ""
    purpose: str = "train"
    samples: tuple[int, ...]
    fates: tuple[Fate, ...]
    trajectory_ids: tuple[str, ...] = ()
    """The attempt that filled each slot; empty string where none did."""
    traceparents: tuple[str, ...] = ()
    """W3C trace context of each attempt, so that the optimizer step can be found from a trace and back."""
    reasons: tuple[str, ...] = ()
    """Why each slot's attempt was refused, in words; empty string where it was not, nothing at all where none was."""
    silence: str = ""
    """Why the group had no signal; empty where it had one."""


class DomainReward(Part):
    mean: float
    passed: int = Field(ge=0)
    count: int = Field(ge=0)


class Step(Message):
    SCHEMA: ClassVar[str] = "temper.step"

    run_id: str
    step: int = Field(ge=0)
    stage: Stage
    stage_index: int = Field(ge=0)
    stage_step: int = Field(ge=0)
    """Steps of this stage done, this one included."""
    lineage: str = ""
    policy_version: int = Field(ge=0)
    """The version that this step made."""
    groups: tuple[GroupFate, ...] = ()
    """Every group resolved since the previous step of the lineage: trained ones and dropped ones."""
    loss: float = 0.0
    loss_terms: dict[str, float] = Field(default_factory=dict)
    kl: float = 0.0
    entropy: float = 0.0
    clip_fraction: float = 0.0
    gradient_norm: float = 0.0
    effective_sample_size: float = 0.0
    learning_rate: float = 0.0
    staleness_mean: float = 0.0
    staleness_max: int = 0
    rewards: dict[str, DomainReward] = Field(default_factory=dict)
    tokens: dict[str, int] = Field(default_factory=dict)
    """Sampled tokens by fate, since the previous step."""
    prompt_tokens: int = 0
    seconds: dict[str, float] = Field(default_factory=dict)
    """wait, compute, checkpoint, publish, total: wall seconds."""
    trained_trajectories: int = 0
    trained_tokens: int = 0
    effective_throughput: float = 0.0
    """Trained trajectories per second of the step's whole time (`seconds.total`)."""
    action: StepAction = "continue"
    """What the guard did. Of the last three no slot is trained: the gradient was dropped, the step counts."""
    notes: tuple[str, ...] = ()
    """What a person should know of this step, a line each: the guard's decision, a verifier that contradicts itself."""
    created_ms: int = 0

    def key(self) -> str:
        return f"{self.run_id}/{self.step:08d}"

    def slots(self) -> tuple[Slot, ...]:
        """The slots that this step trained."""
        return tuple(
            Slot(run_id=self.run_id, group_id=group.group_id, sample_index=index)
            for group in self.groups
            for index, fate in zip(group.samples, group.fates, strict=True)
            if fate == "trained"
        )


class Notice(Message):
    """Groups resolved without training, told at once so that the scheduler admits others.

    Advisory: the book is the next `Step`, which repeats them. Travels on `steps` with key `<run>/notice/<group>`.
    """

    SCHEMA: ClassVar[str] = "temper.notice"

    run_id: str
    groups: tuple[GroupFate, ...]

    def key(self) -> str:
        return f"{self.run_id}/notice/{self.groups[0].group_id if self.groups else ''}"
