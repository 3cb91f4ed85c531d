"""What became of one run.

Invariant: an outcome comes from counters and from our own watching, never from an exit code alone (wall, CPU and
memory kills all look like 137); what the program wrote stays bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from shared.sandbox.faults import SandboxFault


class Outcome(StrEnum):
    """How a run ended. All but `infrastructure` are the program's own doing."""

    EXITED = "exited"
    SIGNALLED = "signalled"
    WALL_LIMIT = "wall_limit"
    CPU_LIMIT = "cpu_limit"
    MEMORY_LIMIT = "memory_limit"
    PROCESS_LIMIT = "process_limit"
    OUTPUT_LIMIT = "output_limit"
    DISK_LIMIT = "disk_limit"
    KILLED = "killed"
    """By us, on request: neither its fault nor ours."""
    INFRASTRUCTURE = "infrastructure"
    """Ours: it never started, or we lost it. Retried, never judged."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What a run used. `stdout_bytes` and `stderr_bytes` count what was written past the caps too."""

    wall_s: float = 0.0
    cpu_s: float = 0.0
    memory_peak_bytes: int = 0
    """Of the whole group, its files in memory included; 0 where nothing counts it."""
    processes_peak: int = 0
    stdout_bytes: int = 0
    stderr_bytes: int = 0
    waited_s: float = 0.0
    """Of `wall_s`, as far as it was seen: ready and without a processor. Not counted against the wall limit."""


@dataclass(frozen=True, slots=True)
class Result:
    """One finished run. `left_behind`: processes that still ran when the main one ended; all are gone now."""

    outcome: Outcome
    exit_code: int | None = None
    signal: int | None = None
    stdout: bytes = b""
    stderr: bytes = b""
    stdout_truncated: bool = False
    stderr_truncated: bool = False
    usage: Usage = Usage()
    left_behind: int = 0
    detail: str = ""
    artifacts: Mapping[str, bytes] = field(default_factory=dict)
    """Collected files by their path in the work folder; a link, a device or a file over the limit is not there."""

    @property
    def ok(self) -> bool:
        return self.outcome is Outcome.EXITED and self.exit_code == 0

    def raise_for_infrastructure(self) -> Result:
        """Itself. Raises `SandboxFault` where the run says nothing about the program."""
        if self.outcome is Outcome.INFRASTRUCTURE:
            raise SandboxFault(self.detail or "the sandbox lost a run; see its log")
        return self
