"""How long a check may take, from the settings and the task's deadline.

Invariant: every check has a finite allowance; a deadline only ever shortens it, and never below what a check that
runs no program needs. Pure: the clock's reading is passed in.
"""

from __future__ import annotations

from shared.settings import VerifierSettings
from shared.verification.checks import Allowance

LEAST_CHILD_S = 1.0
"""A late attempt is still judged where that costs next to nothing (typed answers: about a millisecond), for its
verdict saves a second attempt."""


def allowance(settings: VerifierSettings, deadline_ms: int, now_ms: int) -> Allowance:
    """`deadline_ms` and `now_ms` in milliseconds since the epoch; a deadline of 0 is none."""
    if not deadline_ms:
        return Allowance(settings.check_seconds, settings.sandbox_seconds)
    left_s = max(0.0, (deadline_ms - now_ms) / 1000)
    child_s = min(settings.check_seconds, max(LEAST_CHILD_S, left_s))
    return Allowance(child_s, settings.sandbox_seconds, left_s)


def is_past(deadline_ms: int, now_ms: int) -> bool:
    """Whether nobody waits for a word any more: the scheduler has sent the group again, or given it up."""
    return 0 < deadline_ms <= now_ms
