"""The mount namespace of one program that the keeper starts.

Invariant: it holds no mount of another run and of no session but its own, and what nsjail makes on its way stays in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shared.sandbox.keeper.kernel import (
    CLONE_NEWNS,
    MS_BIND,
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    MS_PRIVATE,
    MS_RDONLY,
    MS_REC,
    MS_REMOUNT,
    detach,
    mount,
    unshare,
)

PROC = "/proc"
MASKED = (
    "acpi", "asound", "bus", "cmdline", "config.gz", "crypto", "driver", "fs", "interrupts", "iomem", "ioports", "irq",
    "kallsyms", "kcore", "key-users", "keys", "kmsg", "kpagecgroup", "kpagecount", "kpageflags", "latency_stats", "locks",
    "mtrr", "sched_debug", "scsi", "softirqs", "sysrq-trigger", "timer_list",
)  # fmt: skip
"""What tells of the machine, its other users and its kernel, and nothing that a program needs to compute."""


def own_mounts(request: dict[str, Any]) -> None:
    """For this process and its children. `scratch`: the folder that nsjail makes its mount points in and leaves them
    there, covered so that it is not the machine's; `others`, `needs`: see `let_go`."""
    unshare(CLONE_NEWNS, "a mount namespace for a program")
    mount("none", "/", "", MS_REC | MS_PRIVATE, "")
    let_go(request["others"], request["needs"])
    if request["scratch"]:
        mount("temper", request["scratch"], "tmpfs", MS_NOSUID | MS_NODEV, "size=64k,mode=1777")


def let_go(others: Sequence[str], needs: Sequence[str]) -> None:
    """Unmounts, in this namespace, what is below one of `others` and is not needed.

    The new namespace holds a copy of every mount of the keeper's. A copy of a session's overlay keeps its layers in
    use, and the session could not be snapshot while we run (EBUSY, seen); a copy of another run's tmpfs keeps its
    memory. The keeper waits for our program's start, so none of it changes meanwhile.
    """
    gone: list[str] = []
    for point in _mount_points():
        if not any(point.startswith(place) for place in others) or any(
            need == point or need.startswith(point + "/") for need in needs
        ):
            continue
        if not any(point.startswith(above + "/") for above in gone):
            detach(point)
            gone.append(point)


def own_proc() -> None:
    """The /proc of this pid namespace over the keeper's: nsjail needs it to map users, and shows it to the program with
    all that is mounted on it. Processes of other users are not seen in it (hidepid, proc(5))."""
    mount("proc", PROC, "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, "hidepid=2")
    for name in MASKED:
        place = Path(PROC, name)
        if place.is_dir():
            mount("temper", str(place), "tmpfs", MS_RDONLY | MS_NOSUID | MS_NODEV, "size=4k,mode=0555")
        elif place.exists():
            mount("/dev/null", str(place), "", MS_BIND, "")
            # Its times are not the run's to set: see `bind_device` in the keeper.
            mount("", str(place), "", MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NOEXEC, "")


def _mount_points() -> list[str]:
    """From above to below. Names below the keeper's folder are ours: no escapes in them."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return sorted(line.split(" ", 5)[4] for line in lines)
