"""How large an answer may be, and the work that comparing two of them may take.

Invariant: work is counted, never timed: the same two texts get the same verdict on an idle and on a busy machine.
"""

from __future__ import annotations

MAX_CHARS = 2000
MAX_TOKENS = 1000
MAX_DEPTH = 40
"""Of nested brackets (two each), fractions, roots and exponents; one costs about seven Python frames."""
MAX_DIGITS = 1000
MAX_EXPONENT = 1000
"""Of scientific notation."""
MAX_BITS = 8192
"""Of a numerator or denominator; 2^100 has 101, 1000! has 8530."""
MAX_ITEMS = 128
READ_WORK = 8_000
"""For one side's normal form, at 3 to 5 µs a unit; what needs more is left to numbers. (x+1)^100 needs 4,000, reading 2,000 characters 2,000."""
COMPARE_WORK = 20_000
"""For deciding one pair: a unit is one coefficient product or one evaluated node of low precision."""

POOL_WORK = 20_000
"""For all the formulas of one JSON object or table together."""


class Unreadable(Exception):
    """A text that declares no value; caught by the reader, which turns it into a `Refusal`."""


class SyntaxFault(Unreadable):
    """It is no formula at all; as plain words it may still be an answer."""


class TooMuch(Exception):
    """A value or comparison beyond the limits of this module."""


class Work:
    """A budget that only goes down; what is spent here is spent from `pool` as well, where there is one."""

    def __init__(self, units: int, pool: Work | None = None) -> None:
        self.left = units
        self._pool = pool

    def spend(self, units: int) -> None:
        """Raises `TooMuch` where nothing is left."""
        if self.left < 0:
            raise TooMuch("more work than an answer may take")
        self.left -= units
        if self._pool is not None:
            self._pool.spend(units)
        if self.left < 0:
            raise TooMuch("more work than an answer may take")
