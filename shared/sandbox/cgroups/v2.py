"""Control groups, version 2: one folder a run, with the controllers `memory` and `pids`.

Invariant: memory of the whole group is bounded and counted by the kernel, swap is off for it, and when it is over its
limit the kernel ends the group as a whole (Documentation/admin-guide/cgroup-v2.rst: memory.oom.group).
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Iterable, Sequence
from pathlib import Path

from shared.sandbox.cgroups.base import FOLDER, HELPERS, HELPERS_MB, Counters
from shared.sandbox.cgroups.mounts import Hierarchy, place
from shared.sandbox.cgroups.v1 import keyed, peak_of, pids_in, remove_folder
from shared.sandbox.faults import SandboxFault, SandboxUnavailable
from shared.sandbox.limits import MIB, Limits
from shared.sandbox.owners import owner_name

NEEDED = ("memory", "pids")
LIMITS = ("memory.max", "pids.max")
ASIDE = "temper-host"
"""A leaf for the processes of a group that wants controllers for its children: a group has processes or controllers
for children, not both (the rule of no internal processes)."""


class V2:
    """Raises `SandboxUnavailable` where the controllers cannot be had."""

    mode = "v2"

    def __init__(self, machine: Iterable[Hierarchy]) -> None:
        unified = next((one for one in machine if not one.controllers), None)
        if unified is None:
            raise SandboxUnavailable("cgroup v2 is not mounted here: mount it at /sys/fs/cgroup")
        self._count = 0
        self._token = secrets.token_hex(4)
        self._parent = base_of(unified) / FOLDER
        self._folder = self._parent / owner_name()
        try:
            self._prepare()
        except OSError as error:
            self.close()
            raise SandboxUnavailable(
                f"cgroup v2: {self._folder} cannot be made ({error.strerror}): the tree must be writable by this process"
            ) from error

    def make(self, limits: Limits) -> V2Group:
        self._count += 1
        group = V2Group(self._folder / f"{self._token}-{self._count}")
        try:
            # The owner's folder may have gone with another sandbox of this process.
            self._prepare()
            group.open(limits)
        except OSError as error:
            group.discard()
            raise SandboxFault(f"cgroup v2: no group for a run: {error}") from error
        return group

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._folder.rmdir()

    def _prepare(self) -> None:
        for folder in (self._parent, self._folder):
            folder.mkdir(exist_ok=True)
            delegate(folder)


class V2Group:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._joins: list[int] = []

    def open(self, limits: Limits) -> None:
        """Raises `OSError`."""
        self._folder.mkdir()
        (self._folder / "memory.max").write_text(str((limits.memory_mb + HELPERS_MB) * MIB))
        (self._folder / "memory.oom.group").write_text("1")
        with contextlib.suppress(FileNotFoundError):
            (self._folder / "memory.swap.max").write_text("0")
        (self._folder / "pids.max").write_text(str(limits.processes + HELPERS))
        self._joins.append(os.open(self._folder / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC))

    @property
    def joins(self) -> Sequence[int]:
        return self._joins

    def counters(self) -> Counters:
        folder = self._folder
        try:
            return Counters(
                cpu_s=keyed(folder / "cpu.stat")["usage_usec"] / 1e6,
                memory_peak_bytes=memory_peak(folder),
                memory_kills=keyed(folder / "memory.events").get("oom_kill", 0),
                process_refusals=keyed(folder / "pids.events").get("max", 0),
                processes_peak=max(0, peak_of(folder) - HELPERS),
            )
        except (OSError, ValueError, KeyError) as error:
            raise SandboxFault(f"cgroup v2: the counters of a run cannot be read: {error}") from error

    def processes(self) -> list[int]:
        return pids_in(self._folder)

    def kill(self) -> None:
        """All at once, forks in flight included (`cgroup.kill`, Linux 5.14)."""
        with contextlib.suppress(OSError):
            (self._folder / "cgroup.kill").write_text("1")

    async def remove(self) -> None:
        self._close()
        await remove_folder(self._folder, self.kill)

    def discard(self) -> None:
        """Of a group in which nothing was started."""
        self._close()
        with contextlib.suppress(OSError):
            self._folder.rmdir()

    def _close(self) -> None:
        while self._joins:
            os.close(self._joins.pop())


def memory_peak(folder: Path) -> int:
    """`memory.peak` is new in Linux 5.19; before it, what is there now."""
    for name in ("memory.peak", "memory.current"):
        with contextlib.suppress(FileNotFoundError):
            return int((folder / name).read_text())
    return 0


def base_of(unified: Hierarchy) -> Path:
    """The group below which ours may be: it hands both controllers down, or can be made to.

    Raises `SandboxUnavailable`.
    """
    highest = place(unified, LIMITS)
    candidates = unified.up()[: unified.up().index(highest) + 1]
    offered = _words(unified.own / "cgroup.controllers")
    missing = [
        name for name in NEEDED if name not in offered and name not in _words(highest / "cgroup.controllers")
    ]
    if missing:
        raise SandboxUnavailable(
            f"cgroup v2 at {unified.mount} has no controller {', '.join(missing)}: it is still bound to version 1, or "
            "not delegated (systemd: Delegate=yes)"
        )
    problem = ""
    for group in reversed(candidates):
        try:
            delegate(group)
            return group
        except OSError as error:
            problem = f"{group}: {error.strerror}"
            if error.errno == errno.EBUSY and _may_step_aside(group, unified):
                with contextlib.suppress(OSError):
                    _step_aside(group)
                    delegate(group)
                    return group
    raise SandboxUnavailable(
        f"cgroup v2: no group hands memory and pids down ({problem}); start Temper in a delegated group "
        "(systemd-run -p Delegate=yes, or a container with a writable /sys/fs/cgroup)"
    )


def delegate(group: Path) -> None:
    """Raises `OSError` where the controllers cannot be given to the groups below."""
    given = _words(group / "cgroup.subtree_control")
    wanted = [f"+{name}" for name in NEEDED if name not in given]
    if wanted:
        (group / "cgroup.subtree_control").write_text(" ".join(wanted))


def _may_step_aside(group: Path, unified: Hierarchy) -> bool:
    """The root of a container's own tree holds the container's processes; a service's group holds ours alone."""
    return group == unified.mount or (
        group == unified.own and all(_is_below(pid, os.getpid()) for pid in pids_in(group))
    )


def _is_below(pid: int, ancestor: int) -> bool:
    while pid not in (0, ancestor):
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[1])
        except OSError:
            return True  # it has ended meanwhile
    return pid == ancestor


def _step_aside(group: Path) -> None:
    """Into a leaf, all of them: the next start finds itself there, and this group free to hand controllers down."""
    leaf = group / ASIDE
    leaf.mkdir(exist_ok=True)
    for pid in pids_in(group):
        with contextlib.suppress(ProcessLookupError):
            (leaf / "cgroup.procs").write_text(str(pid))


def _words(file: Path) -> list[str]:
    with contextlib.suppress(OSError):
        return file.read_text().split()
    return []
