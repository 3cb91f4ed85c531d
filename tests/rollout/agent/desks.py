"""Desks with a scripted policy, and requests as clients write them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from services.rollout.agent.asked import Asked, read_request
from services.rollout.agent.desk import Answer, Desk
from services.rollout.formats.calls import dump_json
from services.rollout.turns.budgets import Budgets
from services.rollout.turns.sampling import Sampler
from services.rollout.turns.tokens import Tokens
from shared.contracts import Sampling
from tests.rollout.turns.scripted import AMPLE, ScriptedEngine, check_exact

SAMPLING = Sampling(max_tokens=4096)
ECHO = {
    "type": "function",
    "function": {
        "name": "echo",
        "description": "Returns its argument.",
        "parameters": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
    },
}


def desk_of(engine: Any, tokens: Tokens, budgets: Budgets = AMPLE, **more: Any) -> Desk:
    sampler = Sampler(engine, "g/0", tokens.stop_ids, 1.0, 1.0, 7)
    return Desk(tokens, budgets, more.pop("sampling", SAMPLING), lambda adapter: sampler, **more)


def body(messages: Sequence[Any], **more: Any) -> bytes:
    return json.dumps({"model": "m", "messages": list(messages), **more}).encode()


def asked(messages: Sequence[Any], **more: Any) -> Asked:
    return read_request(body(messages, **more), SAMPLING, strict=True)


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


def said(answer: Answer) -> dict[str, Any]:
    """As a client puts the answer into its history."""
    calls = [
        {
            "id": number,
            "type": "function",
            "function": {"name": call.name, "arguments": dump_json(call.arguments)},
        }
        for number, call in answer.calls
    ]
    message: dict[str, Any] = {"role": "assistant", "content": answer.text or None, "refusal": None}
    return {**message, "tool_calls": calls} if calls else message


def result(answer: Answer, text: str, number: int = 0) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": answer.calls[number][0], "content": text}


@dataclass(frozen=True, slots=True)
class _Sequences:
    sequences: Any


def check(desk: Desk, engine: ScriptedEngine) -> None:
    """What every attempt must keep: see `check_exact`."""
    check_exact(_Sequences(desk.sequences()), engine)  # type: ignore[arg-type]
