"""Finished-ahead ranges as commit metadata.

Invariant: what `decode_ahead` returns is a subset of what `encode_ahead` was given (all of it when it fits into the
broker's limit; the farthest ranges are left out first), and text that it did not write decodes to nothing.

Form: `a1` and then pairs `gap.length` in base 36, each gap counted from the end of the range before (the first from
the committed offset): `a1 3.2 1.a` on offset 100 is 103–104 and 106–115.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

MAX_BYTES = 4096
"""Apache Kafka's `offset.metadata.max.bytes`."""
_MARK = "a1"
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
_LARGEST = (1 << 63) - 1


class Range(NamedTuple):
    """Offsets from `start` up to `end`, `end` excluded."""

    start: int
    end: int


def encode_ahead(base: int, spans: Sequence[Range], limit: int = MAX_BYTES) -> str:
    """`spans`: disjoint, rising, above `base`. An empty string when there is nothing to say."""
    parts = [_MARK]
    size = len(_MARK)
    at = base
    for span in spans:
        part = f"{_base36(span.start - at)}.{_base36(span.end - span.start)}"
        size += 1 + len(part)
        if size > limit:
            break
        parts.append(part)
        at = span.end
    return " ".join(parts) if len(parts) > 1 else ""


def decode_ahead(base: int, text: str | None) -> list[Range]:
    """The ranges of a committed offset's metadata; empty for anything this build does not understand."""
    parts = (text or "").split(" ")
    if parts[0] != _MARK:
        return []
    out: list[Range] = []
    at = base
    for part in parts[1:]:
        gap, _, length = part.partition(".")
        try:
            start = at + int(gap, 36)
            end = start + int(length, 36)
        except ValueError:
            return []
        if not at <= start < end <= _LARGEST or "-" in part or "+" in part or "_" in part:
            return []
        out.append(Range(start, end))
        at = end
    return out


def _base36(number: int) -> str:
    digits = ""
    while True:
        number, digit = divmod(number, 36)
        digits = _DIGITS[digit] + digits
        if not number:
            return digits
