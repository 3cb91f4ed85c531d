"""Two outputs of programs, compared as bytes.

Invariant: symmetric, linear in the length of both, and never raises, whatever the bytes.
"""

from __future__ import annotations

import math
import re
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

_NUMBER = re.compile(rb"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,4})?")
_MAX_DIGITS = 400


class OutputComparator(BaseModel):
    """`exact`: every byte. `lines`: white space at the ends of lines, and empty lines at the end, do not count.
    `tokens`: runs of white space are one. `numbers`: as tokens, and two numbers are equal within a tolerance.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    kind: Literal["exact", "lines", "tokens", "numbers"] = "lines"
    relative: float = Field(default=1e-9, ge=0)
    absolute: float = Field(default=0.0, ge=0)
    ignore_case: bool = False


def same_output(comparator: OutputComparator, left: bytes, right: bytes) -> bool:
    """Whether two outputs are the same under a declared comparator."""
    if comparator.ignore_case:
        left, right = left.lower(), right.lower()
    if comparator.kind == "exact":
        return left == right
    if comparator.kind == "lines":
        return _lines(left) == _lines(right)
    first, second = left.split(), right.split()
    if comparator.kind == "tokens" or len(first) != len(second):
        return first == second
    return all(_close(comparator, one, other) for one, other in zip(first, second, strict=True))


def _lines(text: bytes) -> list[bytes]:
    lines = [line.rstrip() for line in text.split(b"\n")]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def _close(comparator: OutputComparator, one: bytes, other: bytes) -> bool:
    if one == other:
        return True
    if max(len(one), len(other)) > _MAX_DIGITS or not (_NUMBER.fullmatch(one) and _NUMBER.fullmatch(other)):
        return False
    if b"." not in one + other and b"e" not in (one + other).lower():
        return int(one) == int(other)  # integers are exact, however long
    first, second = float(one), float(other)
    if not (math.isfinite(first) and math.isfinite(second)):
        return False
    return math.isclose(first, second, rel_tol=comparator.relative, abs_tol=comparator.absolute)
