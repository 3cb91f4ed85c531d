"""What becomes of a failed attempt: another one after a delay, or a dead letter.

Invariant: a record is delivered at most `max_attempts` times, and never again without a delay between.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shared.errors import TemperError


class RetryLater(TemperError):
    """A handler's way to give a record back: the attempt counts as failed, the record comes again later."""

    def __init__(self, reason: str, delay_s: float | None = None) -> None:
        super().__init__(reason)
        self.delay_s = delay_s
        """At least so many seconds, as far as there is a retry topic of that delay; None: as the policy has it."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """`delays_s[i]` follows the failure of delivery i + 1; the last delay serves all later ones."""

    delays_s: tuple[float, ...]
    max_attempts: int

    def delay_after(self, attempt: int, error: BaseException) -> float | None:
        """Seconds until the next delivery, one of `delays_s`; None when delivery `attempt` was the last."""
        if attempt >= self.max_attempts or not self.delays_s:
            return None
        wanted = error.delay_s if isinstance(error, RetryLater) else None
        if wanted is not None:
            return _at_least(wanted, self.delays_s)
        return self.delays_s[min(attempt, len(self.delays_s)) - 1]


def due_ms(appended_ms: int, delay_s: float) -> int:
    """When a record of a retry topic may be handled: its append time at the broker and the topic's delay."""
    return appended_ms + round(delay_s * 1000)


def _at_least(wanted_s: float, delays_s: Sequence[float]) -> float:
    longer = [delay for delay in delays_s if delay >= wanted_s]
    return min(longer) if longer else max(delays_s)
