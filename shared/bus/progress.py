"""Liveness by progress: what a consumer has seen of its broker, not what it believes.

Invariant: `problem` is empty only if the broker answered within the limit, and records that are known to wait (and
are not paused on purpose) have not waited longer than the limit without one arriving.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Progress:
    """Pure: times are seconds of one clock, passed in."""

    started: float
    limit_s: float
    answered: float = 0.0
    """When the broker last answered anything that only a working connection answers."""
    received: float = 0.0
    """When records last came."""
    waiting_since: float | None = None
    """Since when records have been known to wait unfetched with none arriving."""

    def __post_init__(self) -> None:
        self.answered = self.answered or self.started
        self.received = self.received or self.started

    def records_came(self, now: float) -> None:
        self.answered = self.received = now
        self.waiting_since = None

    def broker_answered(self, now: float, fetchable_waiting: int) -> None:
        """The ends of the logs are known: `fetchable_waiting` records lie beyond what was fetched, not paused."""
        self.answered = now
        if fetchable_waiting <= 0:
            self.waiting_since = None
        elif self.waiting_since is None:
            self.waiting_since = now

    def problem(self, now: float) -> str:
        """Why the consumer is not well, in words; empty when it is."""
        silent = now - self.answered
        if silent > self.limit_s:
            return f"the broker has not answered for {silent:.0f} s"
        if self.waiting_since is not None and now - self.waiting_since > self.limit_s:
            return f"records wait, and none has come for {now - self.received:.0f} s"
        return ""
