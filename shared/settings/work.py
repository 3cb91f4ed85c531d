"""What is attempted and learnt: workloads, domains and stages.

Invariant: a stage whose groups could teach nothing is refused.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from shared.episode_settings import EpisodeSettings
from shared.settings.section import Section


class WorkloadSettings(Section):
    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_]{0,30}$")
    """A class of work with topics of its own, such as `single_turn`, `agentic`, `long_context`."""
    priorities: tuple[str, ...] = ("high", "normal", "low")
    """Highest first."""
    priority_weights: tuple[int, ...] = (8, 3, 1)
    """How many tasks are taken of each priority while all have some."""
    episode: EpisodeSettings = EpisodeSettings()
    """How attempts with tools and turns are made at tasks of this workload."""

    @model_validator(mode="after")
    def _one_weight_each(self) -> WorkloadSettings:
        if len(self.priorities) != len(self.priority_weights):
            raise ValueError(
                f"{len(self.priorities)} priorities and {len(self.priority_weights)} weights: give one weight each"
            )
        return self


class DomainSettings(Section):
    name: str
    """A domain that is built in or installed (`temper domains list`), or its place, `module:Class`."""
    weight: float = Field(default=1.0, gt=0)
    """Its share of the tasks, against those of the other domains."""
    difficulty: dict[str, Any] = Field(default_factory=dict)
    """Keys of its difficulty model; `temper domains list` shows their defaults."""
    workload: str = "single_turn"
    """Name of a declared workload."""
    max_tokens: int = Field(default=32, ge=1)
    """Sampled in one turn."""
    episode: EpisodeSettings = EpisodeSettings()
    """What is different from the workload's, key by key."""


class ObjectiveSettings(Section):
    """A preset's name (or that of an `[objectives.<name>]` table), and what this stage changes of it.

    Names and values are the learner's, and are checked by every command that starts something, before it does.
    """

    preset: str = "grpo"
    """`grpo`, `dr_grpo`, `dapo`, `gspo`, `cispo`, `rloo`, `reinforce_plus_plus`, `decoupled_ppo`, `sft`, `dpo` and its
    forms, or an objective of one's own."""
    overrides: dict[str, Any] = Field(default_factory=dict)
    """Keys of the preset that this stage has otherwise."""


class StageSettings(Section):
    kind: Literal["sft", "preference", "rl"]
    """`sft` imitates demonstrations, `preference` prefers the better of two answers, `rl` learns from rewards."""
    steps: int = Field(ge=1)
    """Optimizer steps."""
    groups_per_step: int = Field(default=8, ge=1)
    """Groups a step learns from: a demonstration (`sft`), a pair (`preference`) or a group of attempts (`rl`) each."""
    group_size: int = Field(default=8, ge=1)
    """Attempts per instance; always 1 for `sft`, and 2 for pairs of a data set."""
    oversample: int = Field(default=0, ge=0)
    """Attempts more than `group_size`: a group is complete with the first `group_size` that end, and the others are
    cut short. Long answers are then rarer in what is learnt from than in what was sampled."""
    data: str = ""
    """A JSONL file to learn from instead of the domains: `messages` a line for `sft`; `prompt` or `messages`, `chosen`
    and `rejected` for `preference`. Without one `sft` imitates the domains' oracles, and `preference` pairs the best
    with the worst attempt of each group."""
    start_from: str = ""
    """The weights that the stage begins with: a Hugging Face folder, or a checkpoint's folder. Empty: as the stage
    before left them, or `model.path`."""
    learning_rate: float = Field(default=1e-5, gt=0)
    """The highest; constant after the warm-up."""
    warmup_steps: int = Field(default=0, ge=0)
    """In which the rate grows linearly."""
    temperature: float = Field(default=1.0, gt=0)
    """Of sampling; log-probabilities are of the unscaled distribution."""
    objective: ObjectiveSettings = ObjectiveSettings()
    domains: tuple[str, ...] = ()
    """Which domains take part (of a stage with `data`: which are evaluated at its end); empty is all."""

    @model_validator(mode="after")
    def _groups_can_be_compared(self) -> StageSettings:
        if self.kind == "rl" and self.data:
            raise ValueError(
                "an rl stage learns from verified attempts: it has no data; use sft or preference"
            )
        if self.kind != "sft" and not self.data and self.group_size < 2:
            lacks = "has no advantage" if self.kind == "rl" else "makes no pair"
            raise ValueError(f"group_size is {self.group_size}: a group of one {lacks}; use at least 2")
        if self.oversample and (self.kind == "sft" or self.data):
            raise ValueError(
                f"oversample is {self.oversample}, and in a stage of demonstrations or data nothing is sampled: leave it out"
            )
        return self

    @property
    def samples(self) -> int:
        """Slots of a group."""
        if self.kind == "sft":
            return 1
        return 2 if self.data else self.group_size + self.oversample

    @property
    def enough(self) -> int:
        """Usable attempts with which a group is complete."""
        return self.samples - self.oversample
