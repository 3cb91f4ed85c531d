"""Calls as JSON between `<tool_call>` tags: Hermes, Qwen and those that were trained on them.

Invariant: a call ends where its JSON ends, so that arguments which hold the closing tag are read whole.

Source: Nous Research, "Hermes Function Calling"; the chat template of Qwen2.5 has the same words.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from services.rollout.formats.calls import (
    TOO_MANY,
    Call,
    Malformed,
    Parsed,
    dump_json,
    read_call,
    read_json,
    too_many,
    without_reasoning,
)

OPEN, CLOSE = "<tool_call>", "</tool_call>"
EXAMPLE = '{"name": "tool", "arguments": {"argument": "value"}}'


class Hermes:
    """`<tool_call>{"name": …, "arguments": {…}}</tool_call>`, any number a turn."""

    name: ClassVar[str] = "hermes"

    def parse(self, text: str) -> Parsed:
        text = without_reasoning(text)
        calls: list[Call | Malformed] = []
        place = text.find(OPEN)
        said = text if place < 0 else text[:place]
        while place >= 0:
            if too_many(calls):
                calls.append(TOO_MANY)
                break
            call, end = _read(text, place + len(OPEN))
            calls.append(call)
            place = text.find(OPEN, end)
        return Parsed(tuple(calls), said.strip())

    def render(self, calls: Sequence[Call], said: str = "") -> str:
        written = [
            f"{OPEN}\n{dump_json({'name': call.name, 'arguments': call.arguments})}\n{CLOSE}"
            for call in calls
        ]
        return "\n".join([said, *written] if said else written)

    def instructions(self, schemas: Sequence[dict[str, Any]]) -> str:
        listed = "\n".join(dump_json(schema) for schema in schemas)
        return (
            "You may call tools. They are given as JSON schemas, one a line:\n"
            f"<tools>\n{listed}\n</tools>\n"
            f"To call one, write its name and arguments as JSON between tags:\n{OPEN}\n{EXAMPLE}\n{CLOSE}"
        )


def _read(text: str, at: int) -> tuple[Call | Malformed, int]:
    """The call that begins after its opening tag, and the place to read on from."""
    while at < len(text) and text[at].isspace():
        at += 1
    close = text.find(CLOSE, at)
    after_tag = len(text) if close < 0 else close + len(CLOSE)
    found = read_json(text, at)
    if isinstance(found, str):
        if close < 0 and "not JSON" in found:
            found += f"; there is no {CLOSE} either"
        return Malformed(f"{found}; between the tags write {EXAMPLE}"), after_tag
    value, end = found
    rest = text[end:].lstrip()
    if not rest.startswith(CLOSE):
        wrong = "is not closed" if close < 0 else "has more after its JSON object"
        return Malformed(f"the call {wrong}: write {OPEN}, one JSON object, {CLOSE}"), max(end, after_tag)
    return read_call(value, ("arguments", "parameters"), EXAMPLE), len(text) - len(rest) + len(CLOSE)
