"""Watching one run while it runs.

Invariant: a run never outlives its wall limit (less the time in which it was ready and got no processor) by more than
one turn of the loop, nor its CPU and memory limits by more than one look; and whoever watches never waits for the
program. A run that ends by itself while this loop is kept from looking is not called late: what kept us may have kept
it too.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence

from shared.sandbox.cgroups.base import Counters
from shared.sandbox.limits import Limits
from shared.sandbox.outcome import Outcome
from shared.sandbox.starvation import Starvation

LOOK_S = 0.05
LONGEST_LOOK_S = 0.4
"""Looks grow apart up to here, but never so far that the CPU limit could be passed between two. To read the counters
and the statistics of the scheduler twenty times a second took one part in fifty of a check that computes."""
_STARVED_LOOKS = 20
"""Of the wall limit: when it is looked how long the run waited for a processor, which counts at that limit alone."""
_CORES = os.cpu_count() or 1


class Watch:
    """Ends at the first of: the run is over, a limit, somebody's wish.

    `ended`, `flooded` and `stop` may be called at any time, from this loop. `counters` may raise. `processes`: those
    of the run, to see when they are kept from running. `longest_look_s`: for a run whose memory nobody but us bounds.
    """

    def __init__(
        self,
        limits: Limits,
        counters: Callable[[], Counters],
        clock: Callable[[], float] = time.monotonic,
        processes: Callable[[], Sequence[int]] = tuple,
        longest_look_s: float = LONGEST_LOOK_S,
    ) -> None:
        self._limits = limits
        self._counters = counters
        self._clock = clock
        self._started = clock()
        self._starved = Starvation(processes, limits.wall_s)
        self._look_s, self._longest_look_s = min(2 * LOOK_S, longest_look_s), longest_look_s
        self._starved_look = limits.wall_s / _STARVED_LOOKS
        self._woken = asyncio.Event()
        self._over = False
        self._ended_at: float | None = None
        self._flooded = False
        self._stop = False

    def ended(self, at: float | None = None) -> None:
        """`at`: when, on our clock, where somebody nearer than this loop saw it."""
        self._over, self._ended_at = True, at
        self._woken.set()

    def flooded(self) -> None:
        self._flooded = True
        self._woken.set()

    def stop(self) -> None:
        self._stop = True
        self._woken.set()

    def restart(self) -> None:
        """The time until here was ours, not the program's."""
        self._started = self._clock()

    @property
    def seconds(self) -> float:
        """Since the start, until its end where that is known."""
        until = self._clock() if self._ended_at is None else self._ended_at
        return max(0.0, until - self._started)

    @property
    def waited(self) -> float:
        """Seconds without a processor that were given back."""
        return self._starved.seconds

    async def wait(self) -> Outcome | None:
        """Why the run must be ended; None where it is over by itself."""
        while True:
            if self._over:
                return None
            if self._stop:
                return Outcome.KILLED
            if self._flooded:
                return Outcome.OUTPUT_LIMIT
            left = self._limits.wall_s + self._starved.seconds - self.seconds
            if left <= 0:
                self._starved.look(self.seconds)
                left = self._limits.wall_s + self._starved.seconds - self.seconds
            if left <= 0:
                return Outcome.WALL_LIMIT
            counters = self._counters()
            if counters.memory_kills:
                return Outcome.MEMORY_LIMIT
            if counters.cpu_s >= self._limits.cpu_s:
                return Outcome.CPU_LIMIT
            self._woken.clear()
            try:
                await asyncio.wait_for(self._woken.wait(), min(self._next_look(counters), left))
            except TimeoutError:
                self._look_for_starvation()

    def _look_for_starvation(self) -> None:
        now = self.seconds
        if now >= self._starved_look:
            self._starved_look = now + max(LOOK_S, self._limits.wall_s / _STARVED_LOOKS)
            self._starved.look(now)

    def _next_look(self, counters: Counters) -> float:
        """Seconds until then."""
        free = max(LOOK_S, (self._limits.cpu_s - counters.cpu_s) / _CORES)
        seconds = min(self._look_s, free)
        self._look_s = min(self._longest_look_s, 2 * self._look_s)
        return seconds
