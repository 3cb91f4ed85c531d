"""What an attempt remembers: its messages, each with what it is, and what became of those that left the context.

Invariant: two messages of a user stand never side by side because of us: what stands for gone messages is joined to
its neighbour when it is shown, and kept apart here, so that it can itself be summed up again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from services.rollout.context.segments import Kind
from services.rollout.turns.conversation import Spoken
from shared.contracts import ChatMessage


@dataclass(frozen=True, slots=True)
class Entry:
    """One message. `kind` is what it is, whatever role the template shows it under."""

    kind: Kind
    spoken: Spoken

    @property
    def content(self) -> str:
        return self.spoken.message.content


def entries_of(messages: Sequence[ChatMessage]) -> list[Entry]:
    """A task's messages: nothing of them was sampled here."""
    return [Entry(message.role, Spoken(message)) for message in messages]


def turn_of(spoken: Spoken, answers: Sequence[ChatMessage]) -> list[Entry]:
    return [Entry("assistant", spoken), *(Entry("tool", Spoken(message)) for message in answers)]


def aside(text: str) -> Entry:
    return Entry("aside", Spoken(ChatMessage(role="user", content=text)))


def shown(entries: Sequence[Entry]) -> list[Spoken]:
    """As the template gets them."""
    found: list[Spoken] = []
    joins = False
    for entry in entries:
        message = entry.spoken.message
        last = found[-1].message if found else None
        if last is not None and last.role == message.role == "user" and (joins or entry.kind == "aside"):
            found[-1] = Spoken(ChatMessage(role="user", content=f"{last.content}\n\n{message.content}"))
            joins = joins or entry.kind == "aside"
            continue
        found.append(entry.spoken)
        joins = entry.kind == "aside"
    return found
