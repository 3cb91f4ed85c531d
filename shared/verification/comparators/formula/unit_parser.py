"""The unit behind a value: `cm^2`, `km/h`, `square feet`, `kg m/s^2`, `miles per hour`.

Invariant: a unit is the end of its statement; a letter is a unit here only behind another unit or a slash, so that
`5m` stays a product until it is compared with a length.
"""

from __future__ import annotations

import re

from shared.verification.comparators.formula.cursor import Cursor
from shared.verification.comparators.formula.limits import SyntaxFault, Unreadable
from shared.verification.comparators.formula.units import find_unit

_MAX_PARTS = 8
_MAX_EXPONENT = 9
_POWERS = {"square": 2, "cubic": 3}
_PIECES = re.compile(r"\s*(?:([A-Za-z]+)|([$€£¥¢])|(/|\bper\b)|([*. -])|\^\s*\{?\s*(-?[0-9])\s*\}?)")


class _Unit:
    """Collects (word, exponent) pairs."""

    def __init__(self) -> None:
        self.parts: list[tuple[str, int]] = []
        self._sign = 1
        self._power = 1

    def word(self, text: str) -> None:
        if text in ("squared", "cubed"):
            self.exponent(2 if text == "squared" else 3)
        elif text in ("square", "sq", "cubic"):
            self._power = 3 if text == "cubic" else 2
        elif text == "per":
            self._sign = -1
        else:
            self.parts.append((text, self._sign * self._power))
            self._sign = self._power = 1
        if len(self.parts) > _MAX_PARTS:
            raise Unreadable(f"a unit of over {_MAX_PARTS} parts")

    def below(self) -> None:
        self._sign = -1

    def exponent(self, value: int) -> None:
        if not self.parts or abs(value) > _MAX_EXPONENT:
            raise SyntaxFault("an exponent without a unit")
        word, power = self.parts[-1]
        self.parts[-1] = (word, value if power > 0 else -value)


def read_unit(cursor: Cursor) -> tuple[tuple[str, int], ...]:
    unit = _Unit()
    while True:
        token = cursor.next
        if token.kind in ("unit", "word"):
            unit.word(cursor.take().text)
        elif token.kind == "text":
            _read_text(unit, cursor.take().text)
        elif token.kind == "name" and unit.parts and find_unit(token.text):
            unit.word(cursor.take().text)
        elif token.kind == "symbol" and token.text in ("/", "per", "*") and _unit_like(cursor):
            if cursor.take().text != "*":
                unit.below()
            unit.word(cursor.take().text) if cursor.next.kind == "name" else None
        elif unit.parts and cursor.take_if("^"):
            unit.exponent(_exponent(cursor))
        else:
            return tuple(unit.parts)


def _unit_like(cursor: Cursor) -> bool:
    after = cursor.after
    return after.kind in ("unit", "text", "word") or (
        after.kind == "name" and find_unit(after.text) is not None
    )


def _exponent(cursor: Cursor) -> int:
    braced = cursor.take_if("{")
    negative = cursor.take_if("-")
    token = cursor.take()
    if token.kind != "number" or not token.plain or token.value > _MAX_EXPONENT:
        raise SyntaxFault("an exponent of a unit that is no small integer")
    if braced:
        cursor.expect("}")
    return -int(token.value) if negative else int(token.value)


def _read_text(unit: _Unit, text: str) -> None:
    """What stands in `\\text{…}`."""
    at = 0
    while at < len(text):
        found = _PIECES.match(text, at)
        if found is None:
            raise SyntaxFault(f"{text[:20]!a} is no unit")
        if found[1] or found[2]:
            unit.word(found[1] or found[2])
        elif found[3]:
            unit.below()
        elif found[5]:
            unit.exponent(int(found[5]))
        at = found.end()
