"""Lists of integers.

Invariant: the separator is a comma throughout or a blank throughout, so `1,234` is two items and never a
thousand; length and order count unless the type says otherwise.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from shared.verification.answers import Refusal, shown
from shared.verification.comparators.base import Comparator
from shared.verification.comparators.numbers import MAX_DIGITS, plain_minus

MAX_ITEMS = 512
_COMMAS = re.compile(r"\s*,\s*")
_ITEM = re.compile(r"[+-]?[0-9]+")


@dataclass(frozen=True, slots=True)
class IntegerListComparator(Comparator[tuple[int, ...]]):
    """`3, 5, 9`, `[3, 5, 9]`, `3 5 9`; `[]` is the empty list. Not `ordered`: compared as bags."""

    kind = "list of integers"
    max_chars = 4096
    ordered: bool = True

    def read(self, bare: str) -> tuple[int, ...] | Refusal:
        text = plain_minus(bare)
        if text.startswith("[") and text.endswith("]"):
            text = text[1:-1].strip()
            if not text:
                return ()
        items = _COMMAS.split(text) if "," in text else text.split()
        if len(items) > MAX_ITEMS:
            return Refusal(f"a list of {len(items)} items: the limit is {MAX_ITEMS}")
        for item in items:
            if not _ITEM.fullmatch(item) or len(item.lstrip("+-")) > MAX_DIGITS:
                return Refusal(f"{shown(item)} in {shown(text)} is not an integer of the list")
        return tuple(int(item) for item in items)

    def same(self, left: tuple[int, ...], right: tuple[int, ...]) -> bool:
        return left == right if self.ordered else sorted(left) == sorted(right)
