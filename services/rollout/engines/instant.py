"""An engine without a model: it answers at once, from a function of the prompt.

Invariant: its tokens are certain (log-probability 0), so that a loop that runs on it is measured without a policy,
and a learner that trained on it would learn nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from services.rollout.engines.base import (
    EngineLoad,
    GenerateRequest,
    Generation,
    GenerationFault,
    Ids,
    Logprobs,
    RequestTooLongError,
)
from services.rollout.engines.cut import Cut
from shared.contracts import Canary

Answer = Callable[[GenerateRequest], Ids]
Latency = Callable[[GenerateRequest], float]
"""Seconds."""


class InstantEngine:
    """`answer` gives the token ids of a request, cut at `max_tokens`; `latency_s` is waited before it, and a request that is
    cut meanwhile has as large a share of its tokens as passed of it."""

    def __init__(self, answer: Answer, latency_s: float | Latency = 0.0) -> None:
        self._answer = answer
        self._latency: Latency = latency_s if callable(latency_s) else lambda request: latency_s
        self._version = -1
        self._served = asyncio.Event()
        self._going = asyncio.Event()
        self._going.set()
        self._ended = asyncio.Event()
        self._running = 0
        self._sampled = 0
        self._closed = False

    @classmethod
    def fixed(cls, token_ids: Ids, latency_s: float = 0.0) -> InstantEngine:
        """The same tokens for every prompt."""
        return cls(lambda request: token_ids, latency_s)

    @classmethod
    def of_digits(cls, encode: Callable[[str], Ids], stop_ids: frozenset[int]) -> InstantEngine:
        """One digit, chosen by the request's seed, and the end token: some answers are right, some are wrong."""
        end = np.array([min(stop_ids)], dtype=np.int32)
        table = [np.concatenate([encode(str(digit)), end]) for digit in range(10)]
        return cls(lambda request: table[request.seed % len(table)])

    @property
    def name(self) -> str:
        return "instant"

    @property
    def exact(self) -> bool:
        return True

    @property
    def longest(self) -> int:
        return 1 << 20

    async def generate(self, request: GenerateRequest) -> Generation:
        if request.tokens > self.longest:
            raise RequestTooLongError(
                f"request {request.request_id}: {request.tokens} tokens pass {self.longest}"
            )
        if not len(request.prompt_ids):
            raise GenerationFault(f"request {request.request_id}: the prompt is empty")
        self._running += 1
        share = 1.0
        try:
            await self._served.wait()
            latency = self._latency(request)
            if latency:
                share = await _sleep(latency, request.cut)
            await self._going.wait()
        finally:
            self._running -= 1
        if self._closed:
            raise GenerationFault("the engine is closed: it answers no more requests")
        whole = np.asarray(self._answer(request), dtype=np.int32)[: request.max_tokens]
        token_ids = whole[: int(share * len(whole))]
        self._sampled += len(token_ids)
        return Generation(
            token_ids=token_ids,
            logprobs=np.zeros(len(token_ids), dtype=np.float32),
            versions=((len(token_ids), self._version),) if len(token_ids) else (),
            stop_reason="cut"
            if share < 1
            else "stop"
            if int(token_ids[-1]) in request.stop_ids
            else "length",
        )

    async def pause(self) -> None:
        self._going.clear()

    async def resume(self) -> None:
        self._going.set()

    async def load_policy(self, weights: Path, version: int, canary: Canary | None) -> None:
        """Takes the number; there are no weights that could be wrong."""
        self._version = version
        self._served.set()

    async def score(self, token_ids: Ids, lengths: Ids) -> Logprobs:
        return np.zeros(len(token_ids), dtype=np.float32)

    def capacity(self) -> EngineLoad:
        return EngineLoad(
            max_batch=1 << 16,
            running=self._running,
            waiting=0,
            version=self._version,
            sampled_tokens=self._sampled,
            decode_steps=0,
        )

    async def watch(self) -> None:
        await self._ended.wait()

    def close(self) -> None:
        """From the event loop's thread or after it: waiters are woken by their loop."""
        self._closed = True
        for event in (self._served, self._going, self._ended):
            event.set()


async def _sleep(seconds: float, cut: Cut | None) -> float:
    """The share of `seconds` that passed before the cut."""
    if cut is None:
        await asyncio.sleep(seconds)
        return 1.0
    if cut.asked:
        return 0.0
    began = time.monotonic()
    try:
        async with asyncio.timeout(seconds):
            await cut.wait()
    except TimeoutError:
        return 1.0
    return min(0.999, (time.monotonic() - began) / seconds)
