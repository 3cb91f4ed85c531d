"""Process 1 of one run's pid namespace: starts nsjail there, waits, counts what is left, says so, and leaves.

Invariant: when this process ends, the kernel has ended everything of the run, whatever it did: no daemon, no double
fork and no ignored signal outlives process 1 of its namespace (pid_namespaces(7)).

It exists because nsjail makes the program itself process 1, and such a process is not told the truth: signals that it
sends to itself are dropped (`kill -9 $$` goes on and ends with 0; seen), nobody collects its orphans, and what it leaves
behind is gone before anybody could count it. It is a fork of the keeper, real root outside of the jail's user namespace
and outside of its cgroups: the program can neither see it (/proc with hidepid, proc(5)) nor signal it, and lack of
memory or a full process table in there does not touch it.

On the report pipe go JSON lines: `{"anon", "shmem", "cpu", "threads"}` at each look where looks are asked for (nothing
else counts in the mode without cgroups), and at the end `{"status", "left", "cpu"}`: nsjail's wait status, processes
that still lived, CPU seconds of all that was waited for.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from shared.sandbox.keeper.mounts import PROC, own_proc

TICK = os.sysconf("SC_CLK_TCK")
KIB = 1024
"""Sizes in smaps_rollup are in these."""


def run_init(
    request: dict[str, Any], descriptors: list[int], told: int, become: Callable[..., NoReturn]
) -> NoReturn:
    """In the forked child that is process 1, with mounts of its own. `descriptors[0]` is the report pipe; the rest is the program's."""
    report, rest = descriptors[0], descriptors[1:]
    own_proc()
    # Waited for, never handled: the program's end may come before we look for it.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    child = os.fork()
    if child == 0:
        become(request, rest, told)
    _close_all_but(report)
    look_s = float(request.get("look_s", 0.0))
    status = _wait(child, report, look_s)
    left = _left()
    # A full pipe of looks must not cost the last word; whoever reads is there, or the pipe is broken.
    os.set_blocking(report, True)
    _say(report, {"status": status, "left": left, "cpu": _cpu_of_ended()})
    os._exit(0)


def _close_all_but(kept: int) -> None:
    os.closerange(0, kept)
    os.closerange(kept + 1, 1 << 16)


def _wait(child: int, report: int, look_s: float) -> int:
    while True:
        ended = _collect()
        if child in ended:
            return ended[child]
        if look_s:
            _say(report, look())
            signal.sigtimedwait([signal.SIGCHLD], look_s)
        else:
            signal.sigwait([signal.SIGCHLD])


def _collect() -> dict[int, int]:
    """Wait status of every child that has ended, orphans included."""
    ended = {}
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            ended[found[0]] = found[1]
    return ended


def _cpu_of_ended() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _left() -> int:
    """Processes besides this one; ended ones that nobody collected do not count."""
    _collect()
    return sum(_state(pid) not in ("", "Z", "X") for pid in _pids() if pid != "1")


def _pids() -> list[str]:
    return [path.name for path in Path(PROC).iterdir() if path.name.isdigit()]


def _state(pid: str) -> str:
    fields = _stat(pid)
    return fields[0] if fields else ""


def _stat(pid: str) -> list[str]:
    """Fields of /proc/PID/stat from the state on; the name before them may hold anything."""
    with contextlib.suppress(OSError):
        return Path(PROC, pid, "stat").read_text(errors="replace").rpartition(")")[2].split()
    return []


def look() -> dict[str, float]:
    """What all processes but this one hold and have used. Of pages that are shared each has its share (Pss), so a
    forest of forks is not counted many times."""
    total = {"anon": 0.0, "shmem": 0.0, "cpu": _cpu_of_ended(), "threads": 0.0}
    for pid in _pids():
        if pid != "1":
            # It may end at any moment.
            with contextlib.suppress(OSError, IndexError):
                _add(total, pid)
    return total


def _add(total: dict[str, float], pid: str) -> None:
    fields = _stat(pid)
    total["cpu"] += sum(int(field) for field in fields[11:15]) / TICK
    if Path(PROC, pid).stat().st_uid:
        # nsjail itself is root's. Ended ones that nobody waited for count: the process table holds them.
        total["threads"] += int(fields[17])
    for line in Path(PROC, pid, "smaps_rollup").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name in ("Pss_Anon", "Pss_Shmem"):
            total["anon" if name == "Pss_Anon" else "shmem"] += int(rest.split()[0]) * KIB


def _say(report: int, body: dict[str, Any]) -> None:
    """A reader that is gone, or does not read, must not keep this process from its end."""
    with contextlib.suppress(OSError):
        os.write(report, json.dumps(body).encode() + b"\n")
