"""What the endpoint answers, as JSON of the OpenAI API.

Invariant: pure; a stream of chunks says the same as the whole answer. Source: the OpenAI API reference, "The chat
completion object" and "The chat completion chunk object"; server-sent events as in the HTML standard, section 9.2.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from services.rollout.agent.asked import RefusedError
from services.rollout.agent.desk import Answer
from services.rollout.formats.calls import dump_json

DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class Heading:
    """What stands over every part of one answer."""

    id: str
    model: str
    created: int
    """Seconds since the epoch."""

    def over(self, kind: str, **more: Any) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model, **more}


def completion(heading: Heading, answer: Answer) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": _content(answer), "refusal": None}
    if answer.calls:
        message["tool_calls"] = _calls(answer)
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": answer.finish}
    return heading.over("chat.completion", choices=[choice], usage=usage(answer))


def first_chunk(heading: Heading) -> dict[str, Any]:
    return _chunk(heading, {"role": "assistant", "content": ""})


def text_chunk(heading: Heading, text: str) -> dict[str, Any]:
    return _chunk(heading, {"content": text})


def last_chunks(heading: Heading, answer: Answer, told: int, *, with_usage: bool) -> Iterator[dict[str, Any]]:
    """What follows the first `told` characters of the text."""
    rest = (_content(answer) or "")[told:]
    if rest:
        yield text_chunk(heading, rest)
    if answer.calls:
        calls = [{"index": number, **call} for number, call in enumerate(_calls(answer))]
        yield _chunk(heading, {"tool_calls": calls})
    yield _chunk(heading, {}, answer.finish)
    if with_usage:
        yield heading.over("chat.completion.chunk", choices=[], usage=usage(answer))


def usage(answer: Answer) -> dict[str, int]:
    return {
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.sampled_tokens,
        "total_tokens": answer.prompt_tokens + answer.sampled_tokens,
    }


def models(names: list[str]) -> dict[str, Any]:
    data = [{"id": name, "object": "model", "created": 0, "owned_by": "temper"} for name in names]
    return {"object": "list", "data": data}


def error(refused: RefusedError) -> dict[str, Any]:
    kind = "invalid_request_error" if refused.status < 500 else "server_error"
    return {
        "error": {"message": str(refused), "type": kind, "param": refused.param or None, "code": refused.code}
    }


def event(body: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def _content(answer: Answer) -> str | None:
    return None if answer.calls and not answer.text else answer.text


def _calls(answer: Answer) -> list[dict[str, Any]]:
    return [
        {
            "id": number,
            "type": "function",
            "function": {"name": call.name, "arguments": dump_json(call.arguments)},
        }
        for number, call in answer.calls
    ]


def _chunk(heading: Heading, delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    return heading.over("chat.completion.chunk", choices=[choice])
