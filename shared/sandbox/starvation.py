"""How long a run was ready to go on and got no processor.

Invariant: time in which others kept a run from running is no time of its own: a limit of wall time is not reached by
it. What a run can add by crowding itself is bounded, and its CPU limit is not touched.

From the kernel's scheduler statistics (Documentation/scheduler/sched-stats.rst, /proc/<pid>/schedstat: the second
number is nanoseconds spent waiting on a run queue).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Sequence

MOST_TIMES = 4
"""Of its wall limit a run may be given on top: what waits longer than that was starved by more than bad luck, and must
end all the same."""
_MOST_TASKS = 32
"""Looked at, of a run: one that has more keeps itself busy."""

Delays = dict[tuple[int, int], int]


def delays(pids: Iterable[int]) -> Delays:
    """Nanoseconds that each thread has waited so far, by process and thread; those that ended meanwhile are left out."""
    found: Delays = {}
    for pid in pids:
        with contextlib.suppress(OSError, ValueError, IndexError):
            for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 - twenty times a second for every run
                if len(found) >= _MOST_TASKS:
                    return found
                descriptor = os.open(f"/proc/{pid}/task/{thread}/schedstat", os.O_RDONLY | os.O_CLOEXEC)
                try:
                    found[pid, int(thread)] = int(os.read(descriptor, 128).split()[1])
                finally:
                    os.close(descriptor)
    return found


class Starvation:
    """The seconds of one run, summed from look to look: in each, as long as its most delayed thread waited."""

    def __init__(self, pids: Callable[[], Sequence[int]], wall_s: float) -> None:
        self._pids = pids
        self._most = MOST_TIMES * wall_s
        self._last: Delays = {}
        self._then = 0.0
        self.seconds = 0.0

    def look(self, now: float) -> None:
        """`now`: seconds since the run's start, not going backwards."""
        seen = delays(self._pids())
        waited = max((delay - self._last.get(thread, 0) for thread, delay in seen.items()), default=0) / 1e9
        # No thread can have waited longer than the time between two looks.
        self.seconds = min(self._most, self.seconds + max(0.0, min(waited, now - self._then)))
        self._last, self._then = seen, now
