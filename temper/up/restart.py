"""When a dead process is started again: a pure policy, clock passed in.

Invariant: a process whose fault a restart cannot mend (bad configuration) ends the run at once, any other is
restarted with a growing pause, and one that keeps dying without living `healthy_s` ends the run.
"""

from __future__ import annotations

from dataclasses import dataclass

HOPELESS_CODES = frozenset({2})
"""`ConfigError`: the same start fails the same way."""


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
    healthy_s: float = 30.0
    most_failures: int = 6
    failures: int = 0

    def on_exit(self, code: int, lived_s: float) -> RestartAfter | GiveUp:
        """What to do about an exit that nobody asked for. `code` is negative for a signal."""
        if code in HOPELESS_CODES:
            return GiveUp(f"exit code {code}, which no restart mends")
        self.failures = 1 if lived_s >= self.healthy_s else self.failures + 1
        if self.failures >= self.most_failures:
            return GiveUp(f"it died {self.failures} times without living {self.healthy_s:.0f} s")
        return RestartAfter(min(self.longest_pause_s, self.first_pause_s * 2 ** (self.failures - 1)))
