"""Calls as plain fenced blocks, for models that were never trained to call tools.

Invariant: a block whose word after the fence is neither `tool_call` nor a tool with one text argument is text.

A tool whose only needed argument is a text (`bash`, `python`, `submit`) takes the block's body as that argument, so
that a small model needs no JSON: it has seen thousands of blocks that begin with ```bash. Fences as in CommonMark
0.31, section 4.5: a block ends with a fence at least as long as the one that opened it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
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

WORD = "tool_call"
EXAMPLE = '{"name": "tool", "arguments": {"argument": "value"}}'
_OPEN = re.compile(r"^(`{3,})[ \t]*([^\s`]+)[ \t]*\n", re.MULTILINE)


class Fenced:
    """```` ```tool_call ```` with JSON in it, or ```` ```bash ```` with the command itself."""

    name: ClassVar[str] = "fenced"

    def __init__(self, schemas: Sequence[dict[str, Any]] = ()) -> None:
        """`schemas`: of the tools, to know which take a block's body as it is."""
        self._bodies: Mapping[str, str] = {
            schema["function"]["name"]: argument
            for schema in schemas
            if (argument := _only_text(schema["function"])) is not None
        }

    def parse(self, text: str) -> Parsed:
        text = without_reasoning(text)
        calls: list[Call | Malformed] = []
        said, place = None, 0
        while found := _OPEN.search(text, place):
            fence, word = found[1], found[2]
            if word != WORD and word not in self._bodies:
                place = _after_block(text, found.end(), fence)
                continue
            said = text[: found.start()] if said is None else said
            if too_many(calls):
                calls.append(TOO_MANY)
                break
            call, place = self._read(text, found.end(), fence, word)
            calls.append(call)
        return Parsed(tuple(calls), (text if said is None else said).strip())

    def _read(self, text: str, start: int, fence: str, word: str) -> tuple[Call | Malformed, int]:
        closed = _closing(text, start, fence)
        if closed is None:
            return Malformed(f"the block {fence}{word} is not closed: end it with a line {fence}"), len(text)
        body = text[start : max(start, closed.start() - 1)]
        if word in self._bodies:
            return Call(word, {self._bodies[word]: body}), closed.end()
        found = read_json(body, len(body) - len(body.lstrip()))
        if isinstance(found, str):
            return Malformed(f"{found}; in the block write {EXAMPLE}"), closed.end()
        value, end = found
        if body[end:].strip():
            return Malformed("the block has more than one JSON object: one block a call"), closed.end()
        return read_call(value, ("arguments", "parameters"), EXAMPLE), closed.end()

    def render(self, calls: Sequence[Call], said: str = "") -> str:
        written = [self._render(call) for call in calls]
        return "\n".join([said, *written] if said else written)

    def _render(self, call: Call) -> str:
        argument = self._bodies.get(call.name)
        if argument is not None and list(call.arguments) == [argument]:
            body = call.arguments[argument]
            if isinstance(body, str):
                return _block(call.name, body)
        return _block(WORD, dump_json({"name": call.name, "arguments": call.arguments}))

    def instructions(self, schemas: Sequence[dict[str, Any]]) -> str:
        parts = ["You may call tools by writing a block; its result comes in the next message."]
        for schema in schemas:
            function = schema["function"]
            argument = self._bodies.get(function["name"])
            if argument is not None:
                parts.append(f"{function['description']}\n{_block(function['name'], argument)}")
            else:
                parts.append(
                    f"{function['description']} {dump_json(function['parameters'])}\n"
                    f"{_block(WORD, dump_json(_shape(function)))}"
                )
        return "\n\n".join(parts)


def _block(word: str, body: str) -> str:
    longest = max((len(run) for run in re.findall("`+", body)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{word}\n{body}\n{fence}"


def _closing(text: str, start: int, fence: str) -> re.Match[str] | None:
    return re.compile(rf"^`{{{len(fence)},}}[ \t]*$", re.MULTILINE).search(text, start)


def _after_block(text: str, start: int, fence: str) -> int:
    closed = _closing(text, start, fence)
    return len(text) if closed is None else closed.end()


def _only_text(function: Mapping[str, Any]) -> str | None:
    """The one argument that must be given, where it is a text."""
    needed = function["parameters"].get("required", [])
    if len(needed) != 1:
        return None
    kind: Any = function["parameters"]["properties"][needed[0]].get("type")
    return needed[0] if kind == "string" else None


def _shape(function: Mapping[str, Any]) -> dict[str, Any]:
    names = function["parameters"].get("required") or list(function["parameters"]["properties"])
    return {"name": function["name"], "arguments": dict.fromkeys(names, "…")}
