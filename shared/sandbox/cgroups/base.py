"""What every way of counting a run offers.

Invariant: a group belongs to one run, and its name tells its owner: `temper/<pid>-<start time>/<token>-<number>`, so that what
a killed process left can be told from what a living one uses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from shared.sandbox.limits import Limits

FOLDER = "temper"
HELPERS = 1
"""nsjail is inside, beside the program: one process and a few MiB that are no part of the limits."""
HELPERS_MB = 8


@dataclass(frozen=True, slots=True)
class Counters:
    """Of one group, since it was made."""

    cpu_s: float = 0.0
    memory_peak_bytes: int = 0
    memory_kills: int = 0
    """Processes that the kernel killed because the group was at its memory limit."""
    process_refusals: int = 0
    """Forks that failed because the group was at its process limit."""
    processes_peak: int = 0


class Group(Protocol):
    """One run's group."""

    @property
    def joins(self) -> Sequence[int]:
        """Descriptors of its `cgroup.procs` files: whoever writes "0" there is inside. Open until `remove`."""
        ...

    def counters(self) -> Counters:
        """Raises `SandboxFault` where the group is gone."""
        ...

    def processes(self) -> list[int]:
        """Pids, as this process sees them, of all that is inside."""
        ...

    def kill(self) -> None:
        """SIGKILL for all that is inside. What ends a run for certain is its pid namespace; this is for the rest."""
        ...

    async def remove(self) -> None:
        """Kills what is still inside; returns once the group is gone. Raises `SandboxFault` where it will not go."""
        ...


class Cgroups(Protocol):
    """A way of counting, ready to make groups."""

    @property
    def mode(self) -> str:
        """`v1`, `v2` or `none`."""
        ...

    def make(self, limits: Limits) -> Group:
        """Raises `SandboxFault` where it cannot be made."""
        ...

    def close(self) -> None:
        """Removes this process's folder."""
        ...
