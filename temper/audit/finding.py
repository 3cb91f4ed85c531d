"""One thing that is not as it must be."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """`rule` names the promise that is broken, `subject` what breaks it, `text` how."""

    rule: str
    subject: str
    text: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.subject}: {self.text}"


def slot_name(slot: tuple[str, int]) -> str:
    """How findings call a slot (group id, sample index)."""
    return f"slot {slot[0]}/{slot[1]}"
