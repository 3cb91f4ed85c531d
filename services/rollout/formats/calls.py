"""Tool calls as they are read from what a policy said.

Invariant: whatever the text, reading it ends in calls or in malformed ones with a reason that names the mend, and
raises nothing; the arguments of a call are plain JSON that every message can carry (finite numbers, whole Unicode).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

MOST_CALLS = 64
"""Read of one turn; the rest of the text is one malformed call."""
MOST_DEPTH = 64
THINK, UNTHINK = "<think>", "</think>"
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Call:
    """A tool's name and its arguments."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Malformed:
    """What looks like a call and is none. `reason` is read by the policy: what is wrong, and how to write it."""

    reason: str


@dataclass(frozen=True, slots=True)
class Parsed:
    """In the order of the text. `said`: the text before the first of them."""

    calls: tuple[Call | Malformed, ...]
    said: str

    @property
    def malformed(self) -> int:
        return sum(isinstance(call, Malformed) for call in self.calls)


class Format(Protocol):
    """One way of writing calls. Stateless."""

    @property
    def name(self) -> str: ...

    def parse(self, text: str) -> Parsed:
        """The calls of one turn, its end token removed. Raises nothing."""

    def render(self, calls: Sequence[Call], said: str = "") -> str:
        """The calls as the policy is asked to write them, after some words; `parse` reads the same from it."""

    def instructions(self, schemas: Sequence[dict[str, Any]]) -> str:
        """What to say in the system message where the chat template does not tell of tools itself."""


class _NotCarriedError(ValueError):
    """JSON that no message can carry."""


def read_json(text: str, at: int) -> tuple[Any, int] | str:
    """The JSON value that begins at `at` and the place after it; or what is wrong with it."""
    try:
        value, end = _DECODER.raw_decode(text, at)
        _check(value, 0)
    except json.JSONDecodeError as error:
        line = text.count("\n", at, error.pos) + 1
        wrong = error.msg.removesuffix(" starting at")
        return f"it is not JSON: {wrong} at line {line}, character {error.pos - at + 1} of the call"
    except _NotCarriedError as error:
        return str(error)
    except RecursionError:
        return f"its JSON is nested deeper than {MOST_DEPTH}"
    except ValueError:  # a whole number of over 4300 digits (sys.set_int_max_str_digits)
        return "a number in its JSON has too many digits"
    return value, end


def read_call(value: Any, argument_keys: tuple[str, ...], example: str) -> Call | Malformed:
    """From a JSON value. The first of `argument_keys` is the one that is asked for."""
    if not isinstance(value, dict):
        return Malformed(f"a tool call is a JSON object such as {example}, not {_kind(value)}")
    name = value.get("name")
    if not isinstance(name, str) or not name.strip():
        return Malformed(f'the call has no "name": write {example}')
    found: Any = next((value[key] for key in argument_keys if key in value), {})
    if isinstance(found, str):  # the arguments as a JSON text, as some interfaces have them
        read = read_json(found.strip(), 0) if found.strip() else ({}, 0)
        if not isinstance(read, str) and isinstance(read[0], dict) and not found.strip()[read[1] :].strip():
            found = read[0]
    if not isinstance(found, dict):
        return Malformed(
            f'"{argument_keys[0]}" of {name[:80]!r} must be an object of names and values, not {_kind(found)}'
        )
    return Call(name.strip(), found)


def without_reasoning(text: str) -> str:
    """The text after the reasoning that it begins with: a call that was only thought of is none.

    Reasoning that is not closed is read like any text: who forgot the end of a thought may still have meant the call.
    """
    while text.lstrip().startswith(THINK):
        _, closed, rest = text.partition(UNTHINK)
        if not closed:
            break
        text = rest
    return text


def too_many(calls: Sequence[Call | Malformed]) -> bool:
    return len(calls) >= MOST_CALLS


TOO_MANY = Malformed(
    f"a turn of over {MOST_CALLS} tool calls: the rest was not read; make a few calls and read their results first"
)


def dump_json(value: Any) -> str:
    """On one line."""
    return json.dumps(value, ensure_ascii=False)


def _constant(name: str) -> Any:
    raise _NotCarriedError(f"{name} is no JSON number: write a finite number, or null")


def _decimal(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise _NotCarriedError(f"the number {text[:40]} is too large")
    return number


def _check(value: Any, depth: int) -> None:
    if depth > MOST_DEPTH:
        raise _NotCarriedError(f"its JSON is nested deeper than {MOST_DEPTH}")
    if isinstance(value, str):
        if _SURROGATE.search(value):
            raise _NotCarriedError("a text in it holds half of a character (\\ud800 to \\udfff alone)")
    elif isinstance(value, dict):
        for key, item in value.items():
            _check(key, depth)
            _check(item, depth + 1)
    elif isinstance(value, list):
        for item in value:
            _check(item, depth + 1)


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")


_DECODER = json.JSONDecoder(parse_constant=_constant, parse_float=_decimal)
