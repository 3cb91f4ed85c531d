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

from shared.sandbox.cgroups.base import FOLDER, HELPERS, HELPERS_MB, Counters
from shared.sandbox.cgroups.mounts import Hierarchy, place
from shared.sandbox.faults import SandboxFault, SandboxUnavailable
from shared.sandbox.limits import MIB, Limits
from shared.sandbox.owners import owner_name

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
        group = V1Group({name: f"{folder}/{number}" for name, folder in self._folders.items()})
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
    """Paths as text and files read in one call: with `pathlib` a group took us twice as long, and small checks come by
    the hundred a second."""

    def __init__(self, folders: Mapping[str, str]) -> None:
        self._memory, self._pids, self._cpu = (folders[name] for name in NEEDED)
        self._folders = tuple(dict.fromkeys(folders.values()))
        self._joins: list[int] = []

    def open(self, limits: Limits) -> None:
        """Raises `OSError`."""
        for folder in self._folders:
            try:
                os.mkdir(folder)  # noqa: PTH102
            except FileNotFoundError:
                # The owner's folder has gone with another sandbox of this process.
                Path(folder).mkdir(parents=True)
        most = str((limits.memory_mb + HELPERS_MB) * MIB)
        write(f"{self._memory}/memory.limit_in_bytes", most)
        with contextlib.suppress(FileNotFoundError):
            # Not there where the kernel does not count swap; with it, memory and swap together.
            write(f"{self._memory}/memory.memsw.limit_in_bytes", most)
        write(f"{self._pids}/pids.max", str(limits.processes + HELPERS))
        for folder in self._folders:
            self._joins.append(os.open(f"{folder}/cgroup.procs", os.O_WRONLY | os.O_CLOEXEC))

    @property
    def joins(self) -> Sequence[int]:
        return self._joins

    def counters(self) -> Counters:
        try:
            return Counters(
                cpu_s=int(read(f"{self._cpu}/cpuacct.usage")) / 1e9,
                memory_peak_bytes=int(read(f"{self._memory}/memory.max_usage_in_bytes")),
                memory_kills=keyed(f"{self._memory}/memory.oom_control").get("oom_kill", 0),
                process_refusals=keyed(f"{self._pids}/pids.events").get("max", 0),
                processes_peak=max(0, peak_of(self._pids) - HELPERS),
            )
        except (OSError, ValueError) as error:
            raise SandboxFault(f"cgroup v1: the counters of a run cannot be read: {error}") from error

    def processes(self) -> list[int]:
        return pids_in(self._pids)

    def kill(self) -> None:
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    async def remove(self) -> None:
        self._close()
        for folder in self._folders:
            await remove_folder(folder, self.kill)

    def discard(self) -> None:
        """Of a group in which nothing was started."""
        self._close()
        for folder in self._folders:
            with contextlib.suppress(OSError):
                os.rmdir(folder)  # noqa: PTH106

    def _close(self) -> None:
        while self._joins:
            os.close(self._joins.pop())


def read(file: str | Path) -> str:
    """A small file of the kernel's."""
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, 1 << 16).decode()
    finally:
        os.close(descriptor)


def write(file: str | Path, text: str) -> None:
    descriptor = os.open(file, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def keyed(file: str | Path) -> dict[str, int]:
    """A file of lines `name number`."""
    pairs = (line.split() for line in read(file).splitlines())
    return {name: int(number) for name, number in pairs}


def peak_of(pids: str | Path) -> int:
    """`pids.peak` is new in Linux 6.12; before it, what is there now."""
    for name in ("pids.peak", "pids.current"):
        with contextlib.suppress(FileNotFoundError):
            return int(read(f"{pids}/{name}"))
    return 0


def pids_in(folder: str | Path) -> list[int]:
    """Nothing where the folder is gone. 0 stands for a process of another pid namespace that we cannot name."""
    with contextlib.suppress(FileNotFoundError, OSError):
        return [int(line) for line in Path(folder, "cgroup.procs").read_text().split() if line != "0"]
    return []


async def remove_folder(folder: str | Path, kill: Callable[[], None]) -> None:
    """A group is busy for a moment after its last process. Raises `SandboxFault` where it stays so."""
    for _ in range(_TRIES):
        try:
            os.rmdir(folder)  # noqa: PTH106
            return
        except FileNotFoundError:
            return
        except OSError as error:
            last = error
            kill()
        await asyncio.sleep(_PAUSE_S)
    raise SandboxFault(f"the control group {folder} will not go: {last}; see {folder}/cgroup.procs")
