"""Requests and answers of the OpenAI completions API, with the extensions by which a server can be exact.

Invariant: an answer counts as exact only if it has as many log-probabilities as token ids, one at least; ids are taken
from it and never made from its text.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from services.rollout.engines.base import GenerateRequest, GenerationFault, Ids, Logprobs


def request_body(model: str, request: GenerateRequest, salt: str) -> dict[str, Any]:
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
    return body


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


@dataclass(frozen=True, slots=True)
class Answer:
    """ids int32[n], n ≥ 1; logprobs float32[n], zeros where `missing` says why they are none."""

    ids: Ids
    logprobs: Logprobs
    stop_reason: Literal["stop", "length"]
    missing: str = ""

    @classmethod
    def of(cls, answer: Any, request: GenerateRequest, encode: Callable[[str], Ids]) -> Answer:
        """Raises `GenerationFault` for an answer that is none."""
        try:
            choice = answer["choices"][0]
            text, reason = str(choice["text"]), choice.get("finish_reason")
            ids = _numbers(choice.get("token_ids"), int)
            rows = _numbers((choice.get("logprobs") or {}).get("token_logprobs"), float, int)
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise GenerationFault(f"the server's answer is no completion: {error!r}") from error
        ended: Literal["stop", "length"] = "length" if reason == "length" else "stop"
        missing = ""
        if not ids or not rows:
            missing = "it returns no log-probabilities" if ids else "it returns no token ids"
        elif len(ids) != len(rows):
            missing = f"it returns {len(ids)} token ids and {len(rows)} log-probabilities"
        if missing:
            made = encode(text)[: request.max_tokens] if text else np.zeros(0, dtype=np.int32)
            if not len(made):  # an empty answer is its stop token alone
                made = np.array([min(request.stop_ids, default=0)], dtype=np.int32)
            return cls(made, np.zeros(len(made), dtype=np.float32), ended, missing)
        if len(ids) > request.max_tokens:
            raise GenerationFault(f"the server sampled {len(ids)} tokens of {request.max_tokens} asked for")
        return cls(
            np.array(ids, dtype=np.int32),
            np.array(rows, dtype=np.float32),
            "stop" if ids[-1] in request.stop_ids else ended,
        )


def _numbers(value: Any, *kinds: type) -> list[Any]:
    """A list of numbers of these kinds; empty for anything else."""
    right = isinstance(value, list) and all(type(item) in kinds for item in value)
    return value if right else []
