"""Control groups, version 1: `memory`, `pids` and `cpuacct`, a folder in each hierarchy.

Invariant: memory of the whole group, its files in tmpfs and its swap included, is bounded and counted by the kernel
(Documentation/admin-guide/cgroup-v1/memory.rst, pids.rst, cpuacct.rst).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from shared.sandbox.cgroups.base import FOLDER, HELPERS, HELPERS_MB, Counters, owner_name
from shared.sandbox.cgroups.mounts import Hierarchy, place
from shared.sandbox.faults import SandboxFault, SandboxUnavailable
from shared.sandbox.limits import MIB, Limits

NEEDED = ("memory", "pids", "cpuacct")
LIMITS = ("memory.limit_in_bytes", "pids.max", "cpu.cfs_quota_us")
_TRIES, _PAUSE_S = 200, 0.005


class V1:
    """Raises `SandboxUnavailable` where a controller is missing or its tree cannot be written."""

    mode = "v1"

    def __init__(self, machine: Iterable[Hierarchy]) -> None:
        found = {name: one for one in machine for name in one.controllers if name in NEEDED}
        missing = [name for name in NEEDED if name not in found]
        if missing:
            raise SandboxUnavailable(
                f'cgroup v1 has no controller {", ".join(missing)} here: mount it, or set sandbox.cgroups = "v2"'
            )
        owner = owner_name()
        self._count = 0
        self._token = secrets.token_hex(4)
        # cpu and cpuacct are often one hierarchy: one folder then serves both.
        self._folders: dict[str, Path] = {
            name: place(one, LIMITS) / FOLDER / owner for name, one in found.items()
        }
        for folder in self._folders.values():
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                self.close()
                raise SandboxUnavailable(
                    f"cgroup v1: {folder} cannot be made ({error.strerror}): the tree must be writable by this process"
                ) from error

    def make(self, limits: Limits) -> V1Group:
        self._count += 1
        number = f"{self._token}-{self._count}"
        folders = {name: folder / number for name, folder in self._folders.items()}
        group = V1Group(folders)
        try:
            group.open(limits)
        except OSError as error:
            group.discard()
            raise SandboxFault(f"cgroup v1: no group for a run: {error}") from error
        return group

    def close(self) -> None:
        for folder in self._folders.values():
            with contextlib.suppress(OSError):
                folder.rmdir()


class V1Group:
    def __init__(self, folders: Mapping[str, Path]) -> None:
        self._folders = dict(folders)
        self._joins: list[int] = []

    def open(self, limits: Limits) -> None:
        """Raises `OSError`."""
        for folder in set(self._folders.values()):
            # The owner's folder may have gone with another sandbox of this process.
            folder.mkdir(parents=True)
        memory = self._folders["memory"]
        most = (limits.memory_mb + HELPERS_MB) * MIB
        (memory / "memory.limit_in_bytes").write_text(str(most))
        with contextlib.suppress(FileNotFoundError):
            # Not there where the kernel does not count swap; with it, memory and swap together.
            (memory / "memory.memsw.limit_in_bytes").write_text(str(most))
        (self._folders["pids"] / "pids.max").write_text(str(limits.processes + HELPERS))
        for folder in set(self._folders.values()):
            self._joins.append(os.open(folder / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC))

    @property
    def joins(self) -> Sequence[int]:
        return self._joins

    def counters(self) -> Counters:
        memory, pids = self._folders["memory"], self._folders["pids"]
        try:
            return Counters(
                cpu_s=int((self._folders["cpuacct"] / "cpuacct.usage").read_text()) / 1e9,
                memory_peak_bytes=int((memory / "memory.max_usage_in_bytes").read_text()),
                memory_kills=keyed(memory / "memory.oom_control").get("oom_kill", 0),
                process_refusals=keyed(pids / "pids.events").get("max", 0),
                processes_peak=max(0, peak_of(pids) - HELPERS),
            )
        except (OSError, ValueError) as error:
            raise SandboxFault(f"cgroup v1: the counters of a run cannot be read: {error}") from error

    def processes(self) -> list[int]:
        return pids_in(self._folders["pids"])

    def kill(self) -> None:
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    async def remove(self) -> None:
        self._close()
        for folder in set(self._folders.values()):
            await remove_folder(folder, self.kill)

    def discard(self) -> None:
        """Of a group in which nothing was started."""
        self._close()
        for folder in set(self._folders.values()):
            with contextlib.suppress(OSError):
                folder.rmdir()

    def _close(self) -> None:
        while self._joins:
            os.close(self._joins.pop())


def keyed(file: Path) -> dict[str, int]:
    """A file of lines `name number`."""
    pairs = (line.split() for line in file.read_text().splitlines())
    return {name: int(number) for name, number in pairs}


def peak_of(pids: Path) -> int:
    """`pids.peak` is new in Linux 6.12; before it, what is there now."""
    for name in ("pids.peak", "pids.current"):
        with contextlib.suppress(FileNotFoundError):
            return int((pids / name).read_text())
    return 0


def pids_in(folder: Path) -> list[int]:
    """Nothing where the folder is gone. 0 stands for a process of another pid namespace that we cannot name."""
    with contextlib.suppress(FileNotFoundError, OSError):
        return [int(line) for line in (folder / "cgroup.procs").read_text().split() if line != "0"]
    return []


async def remove_folder(folder: Path, kill: Callable[[], None]) -> None:
    """A group is busy for a moment after its last process. Raises `SandboxFault` where it stays so."""
    for _ in range(_TRIES):
        try:
            folder.rmdir()
            return
        except FileNotFoundError:
            return
        except OSError as error:
            last = error
            kill()
        await asyncio.sleep(_PAUSE_S)
    raise SandboxFault(f"the control group {folder} will not go: {last}; see {folder}/cgroup.procs")
