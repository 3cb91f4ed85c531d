"""Choice letters and booleans.

Invariant: a letter or a truth value alone is an answer; a letter with the text of its option is not, because that
text could say something else.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from shared.verification.answers import Refusal, shown
from shared.verification.comparators.base import Comparator

_TEX = re.compile(r"\\(?:text(?:bf|it|rm)?|mathrm|mathbf|mbox|boldsymbol)\s*\{([^{}\\]*)\}")
_CHOICE = re.compile(r"(?:(?:option|choice)\s+)?(?:\(\s*([A-Za-z])\s*\)|([A-Za-z])\s*[).:]?)", re.IGNORECASE)
_TRUE = frozenset(("true", "yes", "t", "y"))
_FALSE = frozenset(("false", "no", "f", "n"))


def without_tex(bare: str) -> str:
    r"""`$\text{(B)}$` as `(B)`: at most two layers of text commands and the dollar signs come off."""
    text = bare.strip().strip("$").strip()
    for _ in range(2):
        match = _TEX.fullmatch(text)
        if match is None:
            break
        text = match[1].strip()
    return text.removesuffix(".") if len(text) > 2 else text


@dataclass(frozen=True, slots=True)
class ChoiceComparator(Comparator[str]):
    """`B`, `(B)`, `B)`, `B.`, `Option B`, in any case; `letters` are those on offer."""

    kind: ClassVar[str] = "choice"
    letters: str = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

    def read(self, bare: str) -> str | Refusal:
        match = _CHOICE.fullmatch(without_tex(bare))
        if match is None:
            return Refusal(f"{shown(bare)} is not one letter alone")
        letter = (match[1] or match[2]).upper()
        if letter not in self.letters:
            return Refusal(f"{letter} is not on offer: {self.letters[0]} to {self.letters[-1]} are")
        return letter

    def same(self, left: str, right: str) -> bool:
        return left == right


@dataclass(frozen=True, slots=True)
class BooleanComparator(Comparator[bool]):
    """`true`, `yes`, `t`, `y` and their opposites, in any case."""

    kind: ClassVar[str] = "boolean"

    def read(self, bare: str) -> bool | Refusal:
        word = without_tex(bare).casefold()
        if word in _TRUE or word in _FALSE:
            return word in _TRUE
        return Refusal(f"{shown(bare)} is neither true nor false")

    def same(self, left: bool, right: bool) -> bool:
        return left == right
