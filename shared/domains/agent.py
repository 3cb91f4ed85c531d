"""An agent program: a command that works on an instance by itself and asks the policy over HTTP.

Invariant: what it may reach is the policy's endpoint and its own sandbox; it is given the public part of a task only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Literal

from shared.errors import ConfigError

PROMPT = "{prompt}"
"""In an argument of the command: the text of the task's last message of a user."""


@dataclass(frozen=True, slots=True)
class AgentProgram:
    """What runs in an attempt's sandbox session in the place of our own turns.

    `files` are put into the work folder beside the task's, by relative path. `answer`: what the verifier reads as the
    final answer. `sampling`: whether a request that asks for another temperature than the task declares is refused
    (`strict`), or answered as the task declares (`task`). Raises `ConfigError`.
    """

    command: tuple[str, ...]
    files: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    answer: Literal["last_turn", "stdout"] = "last_turn"
    sampling: Literal["strict", "task"] = "strict"
    memory_mb: int = 1024
    processes: int = 64

    def __post_init__(self) -> None:
        if not self.command or not self.command[0]:
            raise ConfigError("an agent's command is empty: give a program and its arguments")
        for path in self.files:
            pure = PurePosixPath(path)
            if pure.is_absolute() or ".." in pure.parts or not pure.parts:
                raise ConfigError(f"agent file {path!r} leaves the work folder: give a relative path")

    def argv(self, prompt: str) -> tuple[str, ...]:
        return tuple(part.replace(PROMPT, prompt) for part in self.command)
