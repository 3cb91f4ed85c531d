"""When a dead process is started again: a pure policy.

Invariant: a process whose fault a restart cannot mend ends the run; any other is restarted with a growing pause. What
counts is whether it got anywhere, not for how long it lived: a start that takes a minute and fails is a failed start.

An exit is hopeless
- with code 2 (configuration), at once: the same start fails the same way;
- with code 6 (no progress), at once: it has waited `scheduler.stall_s` already, and would wait as long again;
- with code 5 (storage) the second time in a row: one restart drops a half-written object and reads again what was
  pruned or damaged in between, which mends all that a restart can; a full disk is as full the second time, and the
  services that go on only fill it;
- with any other code and the same last words `most_repeats` times, while the run did not move (no step, no evaluation);
- `most_failures` times in a row, by code or signal, without having reached its work once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

CONFIGURATION, STORAGE, STALLED = 2, 5, 6


@dataclass(frozen=True, slots=True)
class Exit:
    """How a process ended that nobody asked to.

    code: negative for a signal. lived_s: seconds. worked: it said that it serves or has finished something.
    words: its last line. run_moves: a count that grows with every step and evaluation of the run.
    """

    code: int
    lived_s: float
    worked: bool = False
    words: str = ""
    run_moves: int = 0


@dataclass(frozen=True, slots=True)
class RestartAfter:
    seconds: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    reason: str


@dataclass(slots=True)
class RestartPolicy:
    """Of one process."""

    first_pause_s: float = 0.5
    longest_pause_s: float = 10.0
    stable_s: float = 600.0
    """Whoever lived so long was started well: ten times the longest wait of a start (`bus.connect_timeout_s`)."""
    most_failures: int = 6
    most_repeats: int = 3
    failures: int = 0
    repeats: int = 0
    _last: tuple[int, str, int] | None = None

    def on_exit(self, end: Exit) -> RestartAfter | GiveUp:
        """What to do about an exit."""
        if end.code == CONFIGURATION:
            return GiveUp(f"exit code {end.code}, which no restart mends")
        if end.code == STALLED:
            return GiveUp("the run makes no progress")
        self.failures = 1 if end.worked or end.lived_s >= self.stable_s else self.failures + 1
        self._count_repeats(end)
        if end.code == STORAGE and self.repeats >= 2:
            return GiveUp(f"exit code {end.code} twice in a row")
        if self.repeats >= self.most_repeats:
            return GiveUp(f"it ended {self.repeats} times in this way, and the run did not move in between")
        if self.failures >= self.most_failures:
            return GiveUp(f"it died {self.failures} times in a row before it did any work")
        count = max(self.failures, self.repeats)
        return RestartAfter(min(self.longest_pause_s, self.first_pause_s * 2 ** (count - 1)))

    def _count_repeats(self, end: Exit) -> None:
        """Signals have no words: they come from outside, and say nothing of the process."""
        if end.code <= 0:
            self.repeats, self._last = 0, None
            return
        words = "" if end.code == STORAGE else re.sub(r"[\d.:]+", "#", end.words)
        now = (end.code, words, end.run_moves)
        self.repeats = self.repeats + 1 if now == self._last else 1
        self._last = now
