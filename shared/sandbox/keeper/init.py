"""Process 1 of one run's pid namespace: starts nsjail there, waits, counts what is left, says so, and leaves.

Invariant: when this process ends, the kernel has ended everything of the run, whatever it did: no daemon, no double
fork and no ignored signal outlives process 1 of its namespace (pid_namespaces(7)).

It exists because nsjail makes the program itself process 1, and such a process is not told the truth: signals that it
sends to itself are dropped (`kill -9 $$` goes on and ends with 0; seen), nobody collects its orphans, and what it leaves
behind is gone before anybody could count it. It is a fork of the keeper, real root outside of the jail's user namespace
and outside of its cgroups: the program can neither see it (/proc with hidepid, proc(5)) nor signal it, and lack of
memory or a full process table in there does not touch it.

On the report pipe go JSON lines: `{"anon", "shmem", "unmapped", "cpu", "threads"}` at each look where looks are asked
for (nothing else counts in the mode without cgroups, `keeper/looks.py`), and at the end `{"status", "left", "cpu", "at"}`:
nsjail's wait status, processes that still lived, CPU seconds of all that was waited for (with looks: of all there was),
and when it ended, on the machine's monotonic clock.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable
from typing import Any, NoReturn

from shared.sandbox.keeper.looks import Looks, cpu_of_ended, pids, stat_of
from shared.sandbox.keeper.mounts import own_proc
from shared.sandbox.keeper.task_clock import TaskClock
from shared.sandbox.prewarmed.inside.kernel import hear_of_ends_alone


def run_init(
    request: dict[str, Any], descriptors: list[int], told: int, become: Callable[..., NoReturn]
) -> NoReturn:
    """In the forked child that is process 1, with mounts of its own. `descriptors[0]` is the report pipe; the rest is the program's."""
    report, rest = descriptors[0], descriptors[1:]
    own_proc()
    # Waited for, never handled: the program's end may come before we look for it.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    look_s = float(request.get("look_s", 0.0))
    held, let_go = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(let_go)
        # Until it is counted: what it forked before would not be.
        os.read(held, 1)
        os.close(held)
        become(request, rest, told)
    hear_of_ends_alone()
    _close_all_but(report, let_go)
    clock = TaskClock(child) if look_s else None
    os.close(let_go)
    status = _wait(child, report, look_s, Looks(child, clock) if clock is not None else None)
    at = time.monotonic()
    left = _left()
    # A full pipe of looks must not cost the last word; whoever reads is there, or the pipe is broken.
    os.set_blocking(report, True)
    cpu = max(cpu_of_ended(), clock.seconds if clock is not None else 0.0)
    _say(report, {"status": status, "left": left, "cpu": cpu, "at": at})
    os._exit(0)


def _close_all_but(*kept: int) -> None:
    first = 0
    for number in sorted(kept):
        os.closerange(first, number)
        first = number + 1
    os.closerange(first, 1 << 16)


def _wait(child: int, report: int, look_s: float, looks: Looks | None) -> int:
    next_look = time.monotonic()
    while True:
        ended = _collect()
        if child in ended:
            return ended[child]
        if looks is not None:
            # By the clock: a look for each child that ends would keep this process busy for whoever likes.
            if time.monotonic() >= next_look:
                _say(report, looks.look())
                next_look = time.monotonic() + look_s
            signal.sigtimedwait([signal.SIGCHLD], max(0.0, next_look - time.monotonic()))
        else:
            signal.sigwait([signal.SIGCHLD])


def _collect() -> dict[int, int]:
    """Wait status of every child that has ended, orphans included."""
    ended = {}
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            ended[found[0]] = found[1]
    return ended


def _left() -> int:
    """Processes besides this one; ended ones that nobody collected do not count."""
    _collect()
    return sum(_state(pid) not in ("", "Z", "X") for pid in pids() if pid != "1")


def _state(pid: str) -> str:
    fields = stat_of(pid)
    return fields[0] if fields else ""


def _say(report: int, body: dict[str, Any]) -> None:
    """A reader that is gone, or does not read, must not keep this process from its end."""
    with contextlib.suppress(OSError):
        os.write(report, json.dumps(body).encode() + b"\n")
