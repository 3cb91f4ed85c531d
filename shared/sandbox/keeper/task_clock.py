"""The CPU time of one process and of everything that comes from it, without control groups.

Invariant: a descendant counts whether its end was waited for or not. The process table does not offer that: children
of a parent that ignores SIGCHLD are gone with their times (seen: seven seconds of them counted as 0.1 s). An inherited
software event does (perf_event_open(2), PERF_COUNT_SW_TASK_CLOCK): the kernel hands it to every child and adds it up
when that child ends. It needs no performance counters, so virtual machines have it too.

One way out is left: a process that executes a file which it may not read loses the event (the kernel's rule for
programs with more rights than their caller). It and its waited-for children are seen in the process table all the same.
"""

from __future__ import annotations

import ctypes
import os
import struct

from shared.sandbox.keeper.kernel import LIBC

_PERF_EVENT_OPEN = {"x86_64": 298, "aarch64": 241}
_SOFTWARE, _TASK_CLOCK, _INHERIT, _CLOSE_ON_EXEC = 1, 1, 1 << 1, 1 << 3
_ATTRIBUTES = struct.Struct("=IIQQQQQ16x")
"""perf_event_attr of its first version: type, size, config, sample period and type, read format, flags, the rest 0."""


class TaskClock:
    """Open it on a process that has not forked yet. Reads 0 for ever where the kernel offers no such event."""

    def __init__(self, pid: int) -> None:
        attributes = _ATTRIBUTES.pack(_SOFTWARE, _ATTRIBUTES.size, _TASK_CLOCK, 0, 0, 0, _INHERIT)
        call = _PERF_EVENT_OPEN.get(os.uname().machine)
        self._descriptor = -1
        if call is not None:
            self._descriptor = LIBC.syscall(
                ctypes.c_long(call), attributes, ctypes.c_int(pid), ctypes.c_int(-1), ctypes.c_int(-1),
                ctypes.c_ulong(_CLOSE_ON_EXEC),
            )  # fmt: skip

    @property
    def counts(self) -> bool:
        return self._descriptor >= 0

    @property
    def seconds(self) -> float:
        if self._descriptor < 0:
            return 0.0
        return int(struct.unpack("=Q", os.read(self._descriptor, 8))[0]) / 1e9
