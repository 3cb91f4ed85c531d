"""`[domains.agent]`: an agent program of the operator's for one domain.

Invariant: a folder that is named is there, small and text, or it is refused before any work starts.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from shared.domains.agent import AgentProgram, refuse_placeholders
from shared.errors import ConfigError
from shared.plain_errors import said

FOLDER = ".agent"
"""Where in the work folder the program's own files are."""
MOST_FILES, MOST_BYTES = 256, 4 << 20


class AgentSettings(BaseModel):
    """`command` empty: the domain's own agent program, if it has one, else the turns and tools of the rollout."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)

    command: tuple[str, ...] = ()
    """`{prompt}` in it is the task's last message; the program gets the same text on its standard input. It finds the
    policy by OPENAI_BASE_URL and OPENAI_API_KEY."""
    folder: str = ""
    """Its text files, put into the work folder under `.agent/`: `command = ["python3", ".agent/main.py"]`."""
    environment: dict[str, str] = Field(default_factory=dict)
    answer: Literal["last_turn", "stdout"] = "last_turn"
    """What the verifier reads as the final answer: the policy's last turn, or what the program printed."""
    sampling: Literal["strict", "task"] = "strict"
    """`strict` refuses a request whose temperature, top_p or max_tokens contradict the task; `task` leaves them aside."""
    memory_mb: int = Field(default=1024, ge=16)
    processes: int = Field(default=64, ge=1)

    @model_validator(mode="after")
    def _whole(self) -> AgentSettings:
        if not self.command and (self.folder or self.environment):
            raise ValueError("an agent without a command: set command, or leave the table out")
        try:
            refuse_placeholders(self.command, self.environment)
        except ConfigError as error:
            raise ValueError(str(error)) from error
        return self

    def program(self) -> AgentProgram | None:
        """None where no command is set. Reads the folder; raises `ConfigError` where it cannot be used."""
        if not self.command:
            return None
        return AgentProgram(
            self.command,
            _files(Path(self.folder)) if self.folder else {},
            self.environment,
            self.answer,
            self.sampling,
            self.memory_mb,
            self.processes,
        )


def _files(folder: Path) -> dict[str, str]:
    if not folder.is_dir():
        raise ConfigError(
            f"agent.folder is {str(folder)!r}: there is no such folder; give the one that holds the agent's program"
        )
    found: dict[str, str] = {}
    size = 0
    for path in sorted(folder.rglob("*")):
        if not path.is_file() or "__pycache__" in path.parts:
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"agent.folder holds {path}, which cannot be read as text: {said(error)}"
            ) from error
        found[f"{FOLDER}/{path.relative_to(folder).as_posix()}"] = text
        size += len(text)
        if len(found) > MOST_FILES or size > MOST_BYTES:
            raise ConfigError(
                f"agent.folder is {str(folder)!r}: it holds over {MOST_FILES} files or {MOST_BYTES >> 20} MiB: give the "
                "program alone; what it imports belongs into a root file system (sandbox.roots, python_packages)"
            )
    return found
