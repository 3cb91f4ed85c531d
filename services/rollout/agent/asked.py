"""A request for a chat completion, as it is read.

Invariant: what cannot be done as it was asked is refused by name; nothing that changes what is sampled is passed over
in silence. Fields that change nothing (`user`, `metadata`, `store`, `seed` of the client's own) are not read.

Source: the OpenAI API reference, "Create chat completion", as its clients of version 2 send it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from services.rollout.formats.calls import Call
from shared.contracts import Sampling
from shared.plain_errors import explain

MOST_MESSAGES = 4096


class RefusedError(Exception):
    """What the program did wrong, told to it. `code` is for programs, `param` names the field."""

    def __init__(self, status: int, text: str, *, code: str = "invalid_request", param: str = "") -> None:
        super().__init__(text)
        self.status, self.code, self.param = status, code, param


@dataclass(frozen=True, slots=True)
class Uttered:
    """One message, as far as it counts: two that say the same are equal however their JSON was written."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str
    calls: tuple[tuple[str, str], ...] = ()
    """Name and arguments, as JSON with sorted keys."""
    call_id: str = ""
    """Of a tool's message: the call that it answers."""


@dataclass(frozen=True, slots=True)
class Asked:
    """`ids` of the calls of each assistant message, in the order of `messages`, to find a tool's name by."""

    model: str
    messages: tuple[Uttered, ...]
    names: Mapping[str, str]
    """Tool names by call id."""
    schemas: tuple[dict[str, Any], ...]
    max_tokens: int
    stops: tuple[str, ...]
    stream: bool
    usage_chunk: bool


class _Loose(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)


class _Function(_Loose):
    name: str
    arguments: str = "{}"


class _ToolCall(_Loose):
    id: str = ""
    function: _Function


class _Text(_Loose):
    type: str
    text: str = ""


class _Message(_Loose):
    role: str
    content: str | list[_Text] | None = None
    tool_calls: list[_ToolCall] | None = None
    tool_call_id: str = ""


class _Declared(_Loose):
    name: str = Field(min_length=1, max_length=100)
    description: str | None = None
    parameters: dict[str, Any] | None = None


class _Tool(_Loose):
    type: str
    function: _Declared


class _StreamOptions(_Loose):
    include_usage: bool = False


class _Request(_Loose):
    model: str = "policy"
    messages: list[_Message] = Field(min_length=1, max_length=MOST_MESSAGES)
    tools: list[_Tool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    temperature: float | None = None
    top_p: float | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    n: int | None = None
    logprobs: bool | None = None
    logit_bias: dict[str, float] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    response_format: dict[str, Any] | None = None


def read_request(body: bytes, declared: Sampling, *, strict: bool) -> Asked:
    """Raises `RefusedError`. `strict`: sampling that contradicts what is declared is refused, else left aside."""
    try:
        document = json.loads(body)
        request = _Request.model_validate(document)
    except ValidationError as error:
        raise RefusedError(400, explain(_Request, error)) from error
    except (ValueError, RecursionError) as error:
        raise RefusedError(400, f"the body is no JSON: {error}") from error
    _refuse_undoable(request)
    if strict:
        _refuse_contradictions(request, declared)
    limit = request.max_completion_tokens or request.max_tokens or declared.max_tokens
    stops = (request.stop,) if isinstance(request.stop, str) else tuple(request.stop or ())
    messages, names = _messages(request.messages)
    return Asked(
        model=request.model,
        messages=messages,
        names=names,
        schemas=_schemas(request),
        max_tokens=min(limit, declared.max_tokens),
        stops=tuple(stop for stop in stops if stop),
        stream=bool(request.stream),
        usage_chunk=bool(request.stream_options and request.stream_options.include_usage),
    )


def arguments_key(arguments: Any) -> str:
    return json.dumps(arguments, sort_keys=True, ensure_ascii=False)


def as_call(name: str, key: str) -> Call:
    found = json.loads(key)
    return Call(name, found if isinstance(found, dict) else {"value": found})


def _refuse_undoable(request: _Request) -> None:
    format_kind = (request.response_format or {}).get("type", "text")
    wrong = [
        ("n", request.n, request.n not in (None, 1), "one choice a request"),
        (
            "logprobs",
            request.logprobs,
            bool(request.logprobs),
            "log-probabilities are recorded, not returned",
        ),
        (
            "logit_bias",
            request.logit_bias,
            bool(request.logit_bias),
            "the policy's distribution is sampled as it is",
        ),
        ("presence_penalty", request.presence_penalty, bool(request.presence_penalty), "leave it at 0"),
        ("frequency_penalty", request.frequency_penalty, bool(request.frequency_penalty), "leave it at 0"),
        ("response_format", format_kind, format_kind != "text", "only text: ask for JSON in words"),
        (
            "tool_choice",
            request.tool_choice,
            request.tool_choice not in (None, "auto", "none"),
            "use auto or none: a call cannot be forced",
        ),
    ]
    for name, value, refused, mend in wrong:
        if refused:
            raise RefusedError(400, f"{name} is {value!r}, which is not served here: {mend}", param=name)


def _refuse_contradictions(request: _Request, declared: Sampling) -> None:
    for name, asked, wanted in (
        ("temperature", request.temperature, declared.temperature),
        ("top_p", request.top_p, declared.top_p),
    ):
        if asked is not None and asked != wanted:
            raise RefusedError(
                400,
                f"{name} is {asked:g} and this task samples with {wanted:g}: leave it out, or set the agent's sampling to "
                '"task" in the run',
                code="sampling_contradicted",
                param=name,
            )
    for name, tokens in (
        ("max_completion_tokens", request.max_completion_tokens),
        ("max_tokens", request.max_tokens),
    ):
        if tokens is not None and tokens > declared.max_tokens:
            raise RefusedError(
                400,
                f"{name} is {tokens} and this task allows a turn {declared.max_tokens}: ask for less, or leave it out",
                code="sampling_contradicted",
                param=name,
            )


def _messages(given: list[_Message]) -> tuple[tuple[Uttered, ...], dict[str, str]]:
    names: dict[str, str] = {}
    found = []
    for number, message in enumerate(given):
        found.append(_uttered(number, message))
        if message.role == "assistant":
            names.update({call.id: call.function.name for call in message.tool_calls or () if call.id})
    if found[-1].role not in ("user", "tool"):
        raise RefusedError(
            400,
            f"the last message is of {given[-1].role!r}: the policy answers a user or a tool",
            param="messages",
        )
    return tuple(found), names


def _uttered(number: int, message: _Message) -> Uttered:
    where = f"messages.{number}"
    content = _text(where, message.content)
    match message.role:
        case "system" | "developer":
            return Uttered("system", content)
        case "user":
            return Uttered("user", content)
        case "tool":
            return Uttered("tool", content, call_id=message.tool_call_id)
        case "assistant":
            calls = tuple(
                (call.function.name, _arguments(where, call.function.arguments))
                for call in message.tool_calls or ()
            )
            return Uttered("assistant", content.strip(), calls)
    raise RefusedError(
        400,
        f"{where}.role is {message.role!r}: use system, developer, user, assistant or tool",
        param=f"{where}.role",
    )


def _text(where: str, content: str | list[_Text] | None) -> str:
    parts = content if isinstance(content, list) else [_Text(type="text", text=content or "")]
    for part in parts:
        if part.type not in ("text", "refusal"):
            raise RefusedError(
                400,
                f"{where}.content has a part of type {part.type!r}: this policy reads text",
                param=f"{where}.content",
            )
    text = "".join(part.text for part in parts)
    return text.encode("utf-8", "replace").decode("utf-8")


def _arguments(where: str, text: str) -> str:
    try:
        return arguments_key(json.loads(text or "{}"))
    except (ValueError, RecursionError) as error:
        raise RefusedError(
            400, f"{where}: the arguments of a tool call are no JSON: {error}", param=f"{where}.tool_calls"
        ) from error


def _schemas(request: _Request) -> tuple[dict[str, Any], ...]:
    """As chat templates take them; none where the client wants no call."""
    if request.tool_choice == "none":
        return ()
    found = []
    for number, tool in enumerate(request.tools or ()):
        if tool.type != "function":
            raise RefusedError(
                400, f"tools.{number}.type is {tool.type!r}: only functions are served", param="tools"
            )
        found.append(
            {
                "type": "function",
                "function": {
                    "name": tool.function.name,
                    "description": tool.function.description or "",
                    "parameters": tool.function.parameters or {"type": "object", "properties": {}},
                },
            }
        )
    return tuple(found)
