"""Output budgets: how much of a result the policy reads.

Invariant: what is returned is at most the budget long, the notice of the cut aside; it begins as the text begins and
ends as it ends, and a cut is always told with the number of characters that are missing.
"""

from __future__ import annotations

from dataclasses import dataclass

from shared.errors import ConfigError


@dataclass(frozen=True, slots=True)
class OutputBudget:
    """Characters kept of the head and of the tail. The tail is longer: a failing program ends with its reason."""

    head: int = 2000
    tail: int = 4000

    def __post_init__(self) -> None:
        if self.head < 0 or self.tail < 0 or self.head + self.tail == 0:
            raise ConfigError(f"an output budget of {self.head} and {self.tail} characters keeps nothing")

    def keep(self, text: str) -> str:
        """`text`, or its head, a notice, and its tail; cut at line ends where one is near."""
        if len(text) <= self.head + self.tail:
            return text
        head = _to_line_end(text[: self.head])
        tail = _from_line_start(text[len(text) - self.tail :])
        missing = len(text) - len(head) - len(tail)
        notice = f"[… {missing} of {len(text)} characters cut here: ask for less, or for a part …]"
        return "\n".join(part for part in (head, notice, tail) if part)


def _to_line_end(text: str) -> str:
    place = text.rfind("\n")
    return text[:place] if place >= len(text) * 3 // 4 and place > 0 else text


def _from_line_start(text: str) -> str:
    place = text.find("\n")
    return text[place + 1 :] if 0 <= place < len(text) // 4 else text
