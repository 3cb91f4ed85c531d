"""Integers, and numbers within a declared tolerance.

Invariant: values are exact (integers and fractions, never floats) and bounded in digits before they are made, so
no answer costs more than microseconds; digits are ASCII, one number is the whole answer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from shared.verification.answers import Refusal, shown
from shared.verification.comparators.base import Comparator

MAX_DIGITS = 64
MAX_EXPONENT = 308
_MINUS = str.maketrans({"−": "-", "﹣": "-", "－": "-"})
_INTEGER = re.compile(r"[+-]?[0-9]+")
_GROUPED = re.compile(r"[+-]?[0-9]{1,3}(?:,[0-9]{3})+")
_DECIMAL = re.compile(r"([+-]?)([0-9]*)(?:\.([0-9]*))?(?:[eE]([+-]?[0-9]+))?")
_RATIO = re.compile(r"([+-]?[0-9]+) ?/ ?([0-9]+)")
_CANDIDATE = re.compile(r"[+-]?[0-9][0-9,./]*")


def plain_minus(text: str) -> str:
    """Typographic minus signs become ASCII ones."""
    return text.translate(_MINUS)


def read_integer(bare: str) -> int | Refusal:
    """`85`, `-7`, `+3`, `1,234`, leading zeros allowed."""
    text = plain_minus(bare)
    if not (_INTEGER.fullmatch(text) or _GROUPED.fullmatch(text)):
        return _no_number("an integer", text)
    if sum(c.isdigit() for c in text) > MAX_DIGITS:
        return Refusal(f"an integer of over {MAX_DIGITS} digits")
    return int(text.replace(",", ""))


def read_number(bare: str) -> Fraction | Refusal:
    """As `read_integer`, and `3.14`, `.5`, `1e-3`, `22/7`. No percent sign, no unit."""
    text = plain_minus(bare)
    ratio = _RATIO.fullmatch(text)
    if ratio:
        return _fraction(ratio[1], ratio[2])
    if _GROUPED.fullmatch(text.partition(".")[0]):
        text = text.replace(",", "")
    match = _DECIMAL.fullmatch(text)
    if match is None or not (match[2] or match[3]):
        return _no_number("a number", text)
    sign, whole, part, exponent = match[1], match[2], match[3] or "", match[4] or "0"
    if len(whole) + len(part) > MAX_DIGITS:
        return Refusal(f"a number of over {MAX_DIGITS} digits")
    if len(exponent.lstrip("+-0")) > 3 or abs(int(exponent)) > MAX_EXPONENT:
        return Refusal(f"an exponent beyond {MAX_EXPONENT}")
    value = Fraction(int((whole + part) or "0")) * Fraction(10) ** (int(exponent) - len(part))
    return -value if sign == "-" else value


def _fraction(above: str, below: str) -> Fraction | Refusal:
    if max(len(above), len(below)) > MAX_DIGITS:
        return Refusal(f"a number of over {MAX_DIGITS} digits")
    if not int(below):
        return Refusal("a division by zero")
    return Fraction(int(above), int(below))


def _no_number(what: str, text: str) -> Refusal:
    count = len(_CANDIDATE.findall(text))
    if count > 1:
        return Refusal(f"{count} candidates in {shown(text)}: an answer holds one")
    if count == 1:
        return Refusal(f"{shown(text)} is not {what} alone")
    return Refusal(f"{shown(text)} is not {what}")


@dataclass(frozen=True, slots=True)
class IntegerComparator(Comparator[int]):
    """Equal integers. `5.0` is refused: an integer has no decimal part."""

    kind = "integer"

    def read(self, bare: str) -> int | Refusal:
        return read_integer(bare)

    def same(self, left: int, right: int) -> bool:
        return left == right


@dataclass(frozen=True, slots=True)
class NumberComparator(Comparator[Fraction]):
    """Numbers at most `absolute` apart, or at most `relative` of the larger magnitude; both 0 is exact."""

    kind = "number"
    absolute: Fraction = Fraction(0)
    relative: Fraction = Fraction(0)

    def read(self, bare: str) -> Fraction | Refusal:
        return read_number(bare)

    def same(self, left: Fraction, right: Fraction) -> bool:
        allowed = max(self.absolute, self.relative * max(abs(left), abs(right)))
        return abs(left - right) <= allowed
