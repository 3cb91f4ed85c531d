"""Text that must be equal after a declared normalisation.

Invariant: equality is an equivalence (both sides go through one normal form); no similarity, no substring.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass

from shared.verification.answers import Refusal
from shared.verification.comparators.base import Comparator


@dataclass(frozen=True, slots=True)
class TextComparator(Comparator[str]):
    """Normal form: Unicode NFC, runs of white space as one blank, and case folded where `fold_case`."""

    kind = "text"
    fold_case: bool = True

    def read(self, bare: str) -> str | Refusal:
        text = " ".join(bare.split())
        if self.fold_case:
            text = unicodedata.normalize("NFC", text.casefold())
        return text or Refusal("no answer")

    def same(self, left: str, right: str) -> bool:
        return left == right
