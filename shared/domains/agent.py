"""An agent program: a command that works on an instance by itself and asks the policy over HTTP.

Invariant: what it may reach is the policy's endpoint and its own sandbox; it is given the public part of a task only.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Literal

from shared.errors import ConfigError
from shared.plain_errors import nearest

PROMPT = "{prompt}"
"""In an argument of the command: the text of the task's last message of a user."""
_PLACEHOLDER = re.compile(r"(?<!\$)\{[A-Za-z_]\w*\}")
"""`{name}`; `${NAME}` is a shell's, `{ print }` and `{"a": 1}` are somebody else's."""
_MEANT = 0.7
"""Least likeness to `{prompt}` of what was meant to be it: {promt} 0.93, {promts} 0.88, {print} 0.67, {path} 0.57."""


def refuse_placeholders(command: Sequence[str], environment: Mapping[str, str]) -> None:
    """Raises `ConfigError` for one that would reach the program as it is written."""
    for number, part in enumerate(command):
        for found in _PLACEHOLDER.findall(part):
            if found != PROMPT:
                raise ConfigError(
                    f"agent.command.{number} has the placeholder {found!r}, which is not known"
                    f"{nearest(found, (PROMPT,))}; known: {PROMPT}; braces for the program itself take spaces: "
                    f"'{{ {found[1:-1]} }}'"
                )
    for name, value in environment.items():
        for found in _PLACEHOLDER.findall(value):
            if difflib.SequenceMatcher(None, found, PROMPT).ratio() >= _MEANT:
                raise ConfigError(
                    f"agent.environment.{name} has {found!r}, and nothing is put in there: write {PROMPT} in the "
                    "command, or read the text from standard input"
                )


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
        refuse_placeholders(self.command, self.environment)
        for path in self.files:
            pure = PurePosixPath(path)
            if pure.is_absolute() or ".." in pure.parts or not pure.parts:
                raise ConfigError(f"agent file {path!r} leaves the work folder: give a relative path")

    def argv(self, prompt: str) -> tuple[str, ...]:
        return tuple(part.replace(PROMPT, prompt) for part in self.command)
