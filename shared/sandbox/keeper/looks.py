"""What the processes of one run hold and have used, seen from its process 1; for the mode without cgroups.

Invariant: a page counts once, whoever shares it, and memory without a mapping counts where the kernel shows it: files of
memfd_create(2) behind open descriptors, System V segments and messages. It does not show what lies in sockets and
pipes, nor a memfd on its way through a socket.
"""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator
from pathlib import Path

from shared.sandbox.keeper.kernel import enter
from shared.sandbox.keeper.mounts import PROC
from shared.sandbox.keeper.task_clock import TaskClock

TICK = os.sysconf("SC_CLK_TCK")
CLONE_NEWIPC = 0x08000000
KIB = 1024
"""Sizes in smaps_rollup are in these."""
BLOCK = 512
"""st_blocks is in these (stat(2))."""


def pids() -> list[str]:
    return [path.name for path in Path(PROC).iterdir() if path.name.isdigit()]


def stat_of(pid: str) -> list[str]:
    """Fields of /proc/PID/stat from the state on; the name before them may hold anything."""
    with contextlib.suppress(OSError):
        return Path(PROC, pid, "stat").read_text(errors="replace").rpartition(")")[2].split()
    return []


def cpu_of_ended() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


class Looks:
    """At all processes but 1. `nsjail`: the one that is no part of the program; `clock` counts it and all below it."""

    def __init__(self, nsjail: int, clock: TaskClock) -> None:
        self._nsjail = str(nsjail)
        self._clock = clock
        descriptor = os.memfd_create("temper")
        self._memory_device = os.fstat(descriptor).st_dev
        os.close(descriptor)
        self._entered = False

    def look(self) -> dict[str, float]:
        """Bytes, seconds and a number of threads, as `cgroups.none.Look` has them."""
        total = {"anon": 0.0, "shmem": 0.0, "unmapped": 0.0, "cpu": cpu_of_ended(), "threads": 0.0}
        files: dict[int, int] = {}
        for pid in pids():
            if pid != "1":
                # It may end at any moment.
                with contextlib.suppress(OSError, IndexError):
                    self._add(total, files, pid)
        total["unmapped"] = sum(files.values()) + self._system_v()
        total["cpu"] = max(total["cpu"], self._clock.seconds)
        return total

    def _add(self, total: dict[str, float], files: dict[int, int], pid: str) -> None:
        fields = stat_of(pid)
        total["cpu"] += sum(int(field) for field in fields[11:15]) / TICK
        if pid != self._nsjail:
            # Ended ones that nobody waited for count: the process table holds them.
            total["threads"] += int(fields[17])
        for line in Path(PROC, pid, "smaps_rollup").read_text().splitlines():
            name, _, rest = line.partition(":")
            if name in ("Pss_Anon", "Pss_Shmem"):
                total["anon" if name == "Pss_Anon" else "shmem"] += int(rest.split()[0]) * KIB
        if pid != self._nsjail:
            self._enter(pid)
            files.update(self._memory_files(pid))

    def _memory_files(self, pid: str) -> Iterator[tuple[int, int]]:
        """Inodes and bytes of the memfds that it has open. A thread may have a table of descriptors of its own."""
        for table in Path(PROC, pid, "task").glob("*/fd"):
            with contextlib.suppress(OSError):
                for name in os.listdir(table):  # noqa: PTH208 - up to 64 of 32 threads, twenty times a second
                    with contextlib.suppress(OSError):
                        found = os.stat(f"{table}/{name}")  # noqa: PTH116
                        if found.st_dev == self._memory_device:
                            yield found.st_ino, found.st_blocks * BLOCK

    def _enter(self, pid: str) -> None:
        """The IPC namespace of the run, which has one: its files in /proc are those of whoever opens them."""
        if self._entered:
            return
        place = Path(PROC, pid, "ns/ipc")
        if place.stat().st_ino == Path(PROC, "self/ns/ipc").stat().st_ino:
            return
        descriptor = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
        try:
            enter(descriptor, CLONE_NEWIPC, "into the IPC namespace of a run")
            self._entered = True
        finally:
            os.close(descriptor)

    def _system_v(self) -> int:
        """Bytes in shared memory segments, attached or not, and in message queues."""
        if not self._entered:
            return 0
        return _column("shm", "rss") + _column("shm", "swap") + _column("msg", "cbytes")


def _column(table: str, name: str) -> int:
    with contextlib.suppress(OSError, ValueError, IndexError):
        head, *rows = Path(PROC, "sysvipc", table).read_text().splitlines()
        place = head.split().index(name)
        return sum(int(row.split()[place]) for row in rows)
    return 0
