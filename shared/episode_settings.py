"""How attempts with tools and turns are made: `[workloads.episode]`, and what one domain changes in `[domains.episode]`.

Invariant: a key that a domain does not write is its workload's; what cannot hold together (a shell beside narrow file
roots) is refused before anything is attempted.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from shared.agent_settings import AgentSettings
from shared.domains.workspace_tools import SHELLS
from shared.errors import ConfigError
from shared.sandbox.command import inside

TURNS_WITH_TOOLS = 16
"""Where nobody says: a handful of commands, a look at the result, and some to spare for mistakes."""

TURNS_OF_AGENTS = 32
"""Each of its requests is a turn, those of its sub-agents too."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)


class PermissionSettings(_Part):
    """What tools may touch in the work folder, and beyond it."""

    read: tuple[str, ...] = (".",)
    """Folders or files, relative to the work folder."""
    write: tuple[str, ...] = (".",)
    commands: tuple[str, ...] = ()
    """Programs that `bash` may start, without a shell; empty is any, through a shell."""
    network: bool = False
    """Whether a domain's own tools may reach out of the sandbox; jails themselves have no network."""

    @model_validator(mode="after")
    def _inside(self) -> PermissionSettings:
        for root in (*self.read, *self.write):
            if root != ".":
                try:
                    inside(root)
                except ConfigError as error:
                    raise ValueError(str(error)) from error
        return self

    @property
    def everywhere(self) -> bool:
        return "." in self.read and "." in self.write


class ContextSettings(_Part):
    """What happens when the context is nearly full."""

    policy: Literal["none", "window", "compress", "retrieve"] = "none"
    """none: the attempt ends (`context`). window: old exchanges are forgotten. compress: old tool outputs are shortened,
    then summed up by the policy. retrieve: old exchanges go to notes, which the tool `recall` searches."""
    summary_tokens: int = Field(default=512, ge=1)
    """`compress`: of one summary."""
    newest: int = Field(default=2, ge=0)
    """`compress`: exchanges that are neither shortened nor summed up."""
    word_tokens: int = Field(default=96, ge=1)
    """`retrieve`: of the word that stands in the place of what went to the notes."""


class OutputSettings(_Part):
    """Characters of a tool's result that the policy reads: its beginning and its end."""

    head: int = Field(default=2000, ge=0)
    tail: int = Field(default=4000, ge=0)

    @model_validator(mode="after")
    def _keeps_something(self) -> OutputSettings:
        if not self.head + self.tail:
            raise ValueError("head and tail are both 0: a policy that reads no results needs no tools")
        return self


class CommandSettings(_Part):
    """Limits of one command in the sandbox."""

    wall_s: float = Field(default=10.0, gt=0, le=3600)
    cpu_s: float = Field(default=10.0, gt=0, le=3600)
    memory_mb: int = Field(default=256, ge=16, le=1 << 20)
    processes: int = Field(default=32, ge=1, le=4096)
    disk_mb: int = Field(default=64, ge=1, le=1 << 20)
    """Of the work folder: the same for all attempts of a process, the largest that a domain asks for."""


class EpisodeSettings(_Part):
    turns: int = Field(default=0, ge=0)
    """Of the policy; 0: 1 without tools, 16 with tools, 32 of an agent program."""
    context_tokens: int = Field(default=2048, ge=16)
    """Of one context: prompt, answers and results."""
    sampled_tokens: int = Field(default=0, ge=0)
    """Of all turns together; 0: turns × the domain's max_tokens, which is of one turn."""
    tool_calls: int = Field(default=0, ge=0)
    """Of all turns together; 0: 16 for each turn."""
    wall_seconds: float = Field(default=0.0, ge=0)
    """Of one attempt; 0: the group's deadline."""
    tools: tuple[str, ...] = ()
    """Given in the place of those that the domain names."""
    tool_seconds: float = Field(default=30.0, gt=0)
    """Of one call of a domain's own tool."""
    call_format: Literal["auto", "hermes", "llama", "fenced"] = "auto"
    """How calls are written; auto: as the model's chat template was made for."""
    permissions: PermissionSettings = PermissionSettings()
    context: ContextSettings = ContextSettings()
    output: OutputSettings = OutputSettings()
    agent: AgentSettings = AgentSettings()
    """A program that attempts the tasks in the place of our own turns and tools."""
    commands: CommandSettings = CommandSettings()

    @model_validator(mode="after")
    def _a_shell_sees_everything(self) -> EpisodeSettings:
        free = sorted(SHELLS.intersection(self.tools))
        if free and not self.permissions.commands and not self.permissions.everywhere:
            raise ValueError(
                f"tool {free[0]!r} sees the whole work folder: it cannot keep the file roots "
                f"{list(self.permissions.read)} and {list(self.permissions.write)}; leave it out, or name its commands "
                "in permissions.commands"
            )
        return self

    def turns_of(self, tools: tuple[str, ...], *, agent: bool = False) -> int:
        """How many turns an attempt with these tools may take. `agent`: by a program, of the domain's or of these."""
        if agent or self.agent.command:
            return self.turns or TURNS_OF_AGENTS
        return self.turns or (TURNS_WITH_TOOLS if tools else 1)

    def changed_by(self, own: EpisodeSettings) -> EpisodeSettings:
        """These, with the keys that `own` wrote, key by key down to the leaves. Raises `ValidationError`."""
        return EpisodeSettings.model_validate(_merged(_written(self), _written(own)))


def _written(part: BaseModel) -> dict[str, object]:
    return part.model_dump(exclude_unset=True)


def _merged(under: dict[str, object], over: dict[str, object]) -> dict[str, object]:
    merged = dict(under)
    for key, value in over.items():
        below = under.get(key)
        merged[key] = _merged(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged
