"""How results go back to the policy.

Invariant: every call of a turn, malformed ones too, has exactly one answer, in the order of the calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from shared.contracts import ChatMessage

ResultRole = Literal["tool", "user"]


@dataclass(frozen=True, slots=True)
class Answered:
    """The answer to one call; `tool` is empty for a malformed one."""

    tool: str
    text: str


def render_results(answers: Sequence[Answered], role: ResultRole) -> tuple[ChatMessage, ...]:
    """Messages of the next turn.

    A template that knows the role `tool` gets one message a call. Another one gets one user message in all: many
    templates refuse two of the same role in a row.
    """
    if role == "tool":
        return tuple(ChatMessage(role="tool", content=answer.text) for answer in answers)
    many = len(answers) > 1
    parts = [
        f"[result of {answer.tool or 'a malformed call'}{f', {number} of {len(answers)}' if many else ''}]\n{answer.text}"
        for number, answer in enumerate(answers, start=1)
    ]
    return (ChatMessage(role="user", content="\n\n".join(parts)),)
