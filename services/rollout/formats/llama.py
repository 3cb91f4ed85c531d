"""Calls as bare JSON: Llama 3.

Invariant: a turn is calls from its first character or it is text; a JSON answer that is no call stays an answer.

Source: Meta, "Llama 3.1 model cards and prompt formats", JSON based tool calling: one object `{"name": …,
"parameters": {…}}` a call, with or without `<|python_tag|>` before it; several are separated by `;`.
"""

from __future__ import annotations

import re
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

TAG = "<|python_tag|>"
EXAMPLE = '{"name": "tool", "parameters": {"argument": "value"}}'
_LOOKS_LIKE_ONE = re.compile(r'\s*\{\s*"(?:name|type|function|parameters)"\s*:')
_ARGUMENTS = re.compile(r'"(?:parameters|arguments)"\s*:')


class LlamaJson:
    """`{"name": …, "parameters": {…}}`, several separated by `;` or new lines."""

    name: ClassVar[str] = "llama"

    def parse(self, text: str) -> Parsed:
        text = without_reasoning(text)
        if _LOOKS_LIKE_ONE.match(text) and _ARGUMENTS.search(text):
            return Parsed(_read(text), "")
        said, tag, tail = text.partition(TAG)
        return Parsed(_read(tail) if tag else (), said.strip())

    def render(self, calls: Sequence[Call], said: str = "") -> str:
        """With words before them the calls need the tag."""
        written = "; ".join(dump_json({"name": call.name, "parameters": call.arguments}) for call in calls)
        return f"{said}{TAG}{written}" if said else written

    def instructions(self, schemas: Sequence[dict[str, Any]]) -> str:
        listed = "\n".join(dump_json(schema) for schema in schemas)
        return (
            "You may call tools. They are given as JSON schemas, one a line:\n"
            f"{listed}\n"
            f"To call one, answer with nothing but {EXAMPLE}; separate several calls with ;"
        )


def _read(text: str) -> tuple[Call | Malformed, ...]:
    calls: list[Call | Malformed] = []
    at = _skip(text, 0)
    while at < len(text) or not calls:
        if too_many(calls):
            calls.append(TOO_MANY)
            break
        found = read_json(text, at)
        if isinstance(found, str):
            calls.append(Malformed(f"{found}; a call is {EXAMPLE} and nothing else, several separated by ;"))
            break
        value, at = found
        calls.append(read_call(_flat(value), ("parameters", "arguments"), EXAMPLE))
        at = _skip(text, at)
    return tuple(calls)


def _flat(value: Any) -> Any:
    """Some write `{"type": "function", "function": {"name": …}}`, as the schema has it."""
    if isinstance(value, dict) and "name" not in value and isinstance(value.get("function"), dict):
        return value["function"]
    return value


def _skip(text: str, at: int) -> int:
    while at < len(text):
        if text.startswith(TAG, at):
            at += len(TAG)
        elif text[at].isspace() or text[at] == ";":
            at += 1
        else:
            break
    return at
