"""No control groups: rlimits of each process, and looks at the whole run from its process 1.

Invariant: it is weaker, and taken only by name. Between two looks (50 ms) a run may pass its memory limit, and what lies in
sockets and pipes is not seen. Process 1 of the run's pid namespace does the looking (`keeper/looks.py`): it sees every
process of the run and no other, so nothing is missed by changing session or name. CPU time of children that nobody waits
for is counted there (`keeper/task_clock.py`), and not for forked checks. docs/security.md says what that leaves open.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shared.sandbox.cgroups.base import Counters
from shared.sandbox.limits import Limits

LOOK_S = 0.05
EXTRA_ADDRESS_SPACE_MB, _ADDRESS_SPACE_OF_THREAD_MB = 1024, 128


def address_space_mb(limits: Limits) -> int:
    """RLIMIT_AS, well above the memory limit: address space is not memory (a thread reserves 64 MiB of stack and 64 of
    heap, numpy some hundred), but one allocation of a hundred times the limit is refused at once."""
    return limits.memory_mb + EXTRA_ADDRESS_SPACE_MB + _ADDRESS_SPACE_OF_THREAD_MB * limits.processes


@dataclass(frozen=True, slots=True)
class Look:
    """What the processes of a run held at one moment, in bytes, and had used, in seconds. Shared pages count once.
    `unmapped`: shared memory that need not be mapped (memfds, System V), where it is looked for."""

    anon: float
    shmem: float
    cpu: float
    threads: float
    unmapped: float = 0.0


class NoCgroups:
    mode = "none"

    def make(self, limits: Limits) -> NoGroup:
        return NoGroup(limits)

    def close(self) -> None:
        """Nothing was made."""


class NoGroup:
    """Counts from looks. `take` each of them, and the bytes that the run's tmpfs hold."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._cpu_s = 0.0
        self._memory = 0
        self._threads = 0
        self._over = 0

    @property
    def joins(self) -> Sequence[int]:
        return ()

    def take(self, look: Look, in_tmpfs: int) -> None:
        """A page of a file in memory that is mapped counts as shared memory and as file: the larger of both is taken."""
        memory = int(look.anon + max(look.shmem, in_tmpfs + look.unmapped))
        self._memory = max(self._memory, memory)
        self._over += memory > self._limits.memory_mb << 20
        self._threads = max(self._threads, int(look.threads))
        self.end(look.cpu)

    def end(self, cpu_s: float) -> None:
        self._cpu_s = max(self._cpu_s, cpu_s)

    def counters(self) -> Counters:
        return Counters(
            cpu_s=self._cpu_s,
            memory_peak_bytes=self._memory,
            memory_kills=self._over,
            process_refusals=int(self._threads >= self._limits.processes),
            processes_peak=self._threads,
        )

    def processes(self) -> list[int]:
        return []

    def kill(self) -> None:
        """The end of the run's process 1 is what kills here."""

    async def remove(self) -> None:
        """Nothing was made."""
