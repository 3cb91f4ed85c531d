"""Which format a model's chat template was written for.

Invariant: the choice is a function of the template's text and of what it renders, so every process of a run that has
the same model makes the same one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from services.rollout.formats.calls import Format
from services.rollout.formats.fenced import Fenced
from services.rollout.formats.hermes import Hermes
from services.rollout.formats.llama import LlamaJson
from services.rollout.formats.results import ResultRole
from shared.contracts import ChatMessage
from shared.errors import ConfigError

Schemas = Sequence[dict[str, Any]]
Render = Callable[[Sequence[Mapping[str, str]], Schemas], str]
"""Text of role-and-content messages under the template, with these tools; raises anything."""
_PROBE = "zq7probe"


@dataclass(frozen=True, slots=True)
class Adapter:
    """A format and what the template does by itself.

    `tells`: it lists the tools in the prompt when they are given to it. `role`: under which it shows results.
    `systems`: it shows a system message.
    """

    format: Format
    tells: bool
    role: ResultRole
    systems: bool

    def introduce(self, messages: Sequence[ChatMessage], schemas: Schemas) -> tuple[ChatMessage, ...]:
        """The task's messages, with the tools told of in the system message where the template does not tell."""
        if self.tells or not schemas:
            return tuple(messages)
        told = self.format.instructions(schemas)
        if not self.systems:
            return _told_first_user(messages, told)
        if messages and messages[0].role == "system":
            first = ChatMessage(role="system", content=f"{messages[0].content}\n\n{told}")
            return (first, *messages[1:])
        return (ChatMessage(role="system", content=told), *messages)


def choose(template: str, render: Render, schemas: Schemas, wanted: str = "") -> Adapter:
    """The adapter of a chat template. `wanted` names a format and overrides the choice.

    Raises `ConfigError` for a name that is none.
    """
    formats: dict[str, Format] = {
        "hermes": Hermes(),
        "llama": LlamaJson(),
        "fenced": Fenced(schemas),
    }
    name = wanted or _format_of(template)
    if name not in formats:
        raise ConfigError(f"tool-call format {name!r} is not known; known: {', '.join(sorted(formats))}")
    # A template that tells of tools in a form of which we know nothing would ask for calls that nobody reads.
    tells = bool(schemas) and name != Fenced.name and _tells(render)
    return Adapter(formats[name], tells, "tool" if _shows(render, "tool") else "user", _shows_system(render))


def _format_of(template: str) -> str:
    if "<tool_call>" in template:
        return "hermes"
    if "<|python_tag|>" in template or ('"parameters"' in template and '"name"' in template):
        return "llama"
    return "fenced"


def _tells(render: Render) -> bool:
    """The template shows the tools that it is given."""
    schema = {
        "type": "function",
        "function": {"name": _PROBE, "description": "", "parameters": {"type": "object", "properties": {}}},
    }
    return _PROBE in _tried(render, [{"role": "user", "content": "x"}], [schema])


def _shows(render: Render, role: str) -> bool:
    messages = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": "y"},
        {"role": role, "content": _PROBE},
    ]
    return _PROBE in _tried(render, messages, ())


def _shows_system(render: Render) -> bool:
    messages = [{"role": "system", "content": _PROBE}, {"role": "user", "content": "x"}]
    return _PROBE in _tried(render, messages, ())


def _tried(render: Render, messages: Sequence[Mapping[str, str]], schemas: Schemas) -> str:
    # A template may refuse a role with an error of its own (`raise_exception`), or stumble over it in any way.
    with contextlib.suppress(Exception):
        return render(messages, schemas)
    return ""


def _told_first_user(messages: Sequence[ChatMessage], told: str) -> tuple[ChatMessage, ...]:
    for place, message in enumerate(messages):
        if message.role == "user":
            changed = ChatMessage(role="user", content=f"{told}\n\n{message.content}")
            return (*messages[:place], changed, *messages[place + 1 :])
    return (ChatMessage(role="user", content=told), *messages)
