"""What the runs of one piece of work used together.

Invariant: every run that ends with a result is counted once, by the innermost `metered` block in whose context it was
started; runs started elsewhere, at the same time too, are not (PEP 567).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass

from shared.sandbox.outcome import Usage


@dataclass(slots=True)
class Spent:
    """Of the runs that have ended until now."""

    cpu_s: float = 0.0
    runs: int = 0


_METER: ContextVar[Spent | None] = ContextVar("spent_in_jails", default=None)


@contextlib.contextmanager
def metered() -> Iterator[Spent]:
    """Counts the runs that the block starts, also those of tasks that it makes."""
    meter = Spent()
    token = _METER.set(meter)
    try:
        yield meter
    finally:
        _METER.reset(token)


def count(usage: Usage) -> Usage:
    """Books a run that has ended; says what it was given."""
    meter = _METER.get()
    if meter is not None:
        meter.cpu_s += usage.cpu_s
        meter.runs += 1
    return usage
