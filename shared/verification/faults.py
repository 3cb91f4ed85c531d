"""Faults of ours while checking, told apart by kind.

Invariant (5 of the design): each kind maps to a fault verdict, never to a number.
"""

from __future__ import annotations

from shared.contracts.reward import Verdict
from shared.errors import VerificationFault


class CheckTimedOut(VerificationFault):
    """A check over its wall or CPU budget; its child was killed."""


class CheckTooLate(CheckTimedOut):
    """A check for which the task's deadline left too little time; nobody wants its verdict."""


class CheckerDied(VerificationFault):
    """A child that ended, or broke its protocol, in the middle of a check."""


def fault_verdict(error: BaseException) -> Verdict:
    """The terminal verdict for a check that kept failing with `error`."""
    return "timeout_infra" if isinstance(error, CheckTimedOut) else "infrastructure"
