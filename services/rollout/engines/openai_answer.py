"""Requests and answers of the OpenAI completions API, with the extensions by which a server can be exact.

Invariant: an answer counts as exact only if it has as many log-probabilities as token ids, one at least; ids are taken
from it and never made from its text.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from services.rollout.engines.base import GenerateRequest, GenerationFault, Ids, Logprobs
from shared.telemetry.text import one_line


def request_body(
    model: str, request: GenerateRequest, salt: str, *, streamed: bool = False
) -> dict[str, Any]:
    """Every default that a server may have of its own is set by name, as far as the request is to be exact."""
    body: dict[str, Any] = {
        "model": model,
        "prompt": request.prompt_ids.tolist(),
        "max_tokens": request.max_tokens,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "seed": request.seed % (1 << 63),
    }
    if request.exact:
        body |= {
            "logprobs": 0,
            "return_token_ids": True,
            "stop_token_ids": sorted(request.stop_ids),
            "ignore_eos": True,
            "top_k": 0,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "skip_special_tokens": False,
            "cache_salt": salt,
        }
    return body | ({"stream": True} if streamed else {})


def score_body(model: str, ids: Ids, salt: str) -> dict[str, Any]:
    return {
        "model": model,
        "prompt": ids.tolist(),
        "max_tokens": 1,
        "temperature": 0.0,
        "echo": True,
        "logprobs": 0,
        "cache_salt": salt,
    }


def scores_of(answer: Any, size: int) -> Logprobs:
    """float32[size] of an echoed prompt. Raises `GenerationFault` where the server does not score prompts."""
    try:
        rows = answer["choices"][0]["logprobs"]["token_logprobs"][:size]
        scored = np.array([0.0, *rows[1:]], dtype=np.float32)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise GenerationFault(
            f"the server does not score a prompt (echo with logprobs): {error!r}"
        ) from error
    if len(scored) != size:
        raise GenerationFault(f"the server scored {len(scored)} of {size} tokens of a prompt")
    return scored


Stop = Literal["stop", "length", "cut"]


@dataclass(frozen=True, slots=True)
class Answer:
    """ids int32[n], n ≥ 1; logprobs float32[n], zeros where `missing` says why they are none."""

    ids: Ids
    logprobs: Logprobs
    stop_reason: Stop
    missing: str = ""

    @classmethod
    def of(cls, answer: Any, request: GenerateRequest, encode: Callable[[str], Ids]) -> Answer:
        """Of an answer that came whole. Raises `GenerationFault` for one that is none."""
        pieces = Pieces()
        pieces.take(answer)
        return pieces.answer(request, encode)


@dataclass(slots=True)
class Pieces:
    """One answer, as far as it came."""

    text: str = ""
    ids: list[int] = field(default_factory=list)
    rows: list[float] = field(default_factory=list)
    ended: str | None = None
    """The server's `finish_reason`; None: there is more to come."""

    def take(self, piece: Any) -> list[int]:
        """The ids that it adds. Raises `GenerationFault` for a piece that is none."""
        try:
            if not piece["choices"] and "usage" in piece:
                return []  # told once at the end of a stream
            choice = piece["choices"][0]
            text, reason = str(choice["text"]), choice.get("finish_reason")
            ids = _numbers(choice.get("token_ids"), int)
            rows = _numbers((choice.get("logprobs") or {}).get("token_logprobs"), float, int)
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise GenerationFault(
                f"the server's answer is no completion: {one_line(str(piece)[:200])}"
            ) from error
        self.text += text
        self.ids += ids
        self.rows += rows
        self.ended = str(reason) if reason else self.ended
        return ids

    def answer(self, request: GenerateRequest, encode: Callable[[str], Ids], *, cut: bool = False) -> Answer:
        """`cut`: nobody waits for the rest. Raises `GenerationFault` for more tokens than were asked for."""
        ids, rows = self.ids, self.rows
        full = self.ended == "length" or len(ids) == request.max_tokens
        ended: Stop = "length" if full else "stop"
        missing = ""
        if not ids or not rows:
            missing = "it returns no log-probabilities" if ids else "it returns no token ids"
        elif len(ids) != len(rows):
            missing = f"it returns {len(ids)} token ids and {len(rows)} log-probabilities"
        if missing:
            made = encode(self.text)[: request.max_tokens] if self.text else np.zeros(0, dtype=np.int32)
            if not len(made):  # an empty answer is its stop token alone
                made = np.array([min(request.stop_ids, default=0)], dtype=np.int32)
            return Answer(made, np.zeros(len(made), dtype=np.float32), ended, missing)
        if len(ids) > request.max_tokens:
            raise GenerationFault(f"the server sampled {len(ids)} tokens of {request.max_tokens} asked for")
        if cut and self.ended is None and len(ids) < request.max_tokens:
            ended = "cut"
        return Answer(
            np.array(ids, dtype=np.int32),
            np.array(rows, dtype=np.float32),
            "stop" if ids[-1] in request.stop_ids else ended,
        )


def _numbers(value: Any, *kinds: type) -> list[Any]:
    """A list of numbers of these kinds; empty for anything else."""
    right = isinstance(value, list) and all(type(item) in kinds for item in value)
    return value if right else []
