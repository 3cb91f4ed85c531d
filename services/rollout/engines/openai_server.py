"""A server that speaks the OpenAI completions API: what is asked of it, and what it was found to be.

Invariant: `inexact` is empty only where it was proven that the server returns ids and unscaled log-probabilities of what
it sampled, `streams` is True only where its streamed answers were proven to be the same.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import numpy as np

from services.rollout.engines.base import GenerateRequest, GenerationFault, Ids, Logprobs
from services.rollout.engines.cut import unless_cut
from services.rollout.engines.http import HttpError, call, events
from services.rollout.engines.openai_answer import Answer, Pieces, request_body, score_body, scores_of
from shared.errors import DependencyError

_PROOF_TOLERANCE = 0.05  # nats; half the temperature changes them by tenths, bfloat16 kernels by hundredths
_PROOF = tuple(range(3, 13))


class CompletionsApi:
    """At `base` (`http://host:port/v1`). `encode` makes ids of text where the server returns none.

    Every call raises `HttpError` where there is no answer, and `GenerationFault` for one that is none.
    """

    def __init__(self, base: str, model: str, key: str, encode: Callable[[str], Ids]) -> None:
        self.base = base.rstrip("/")
        self.inexact = "it was not asked yet"
        """Why it may not train; empty where it may."""
        self.streams = False
        self._model = model
        self._key = key
        self._encode = encode
        self._salt = "temper-0"

    async def introduce(self) -> None:
        """Finds the model, and what the server can do. Raises `DependencyError`."""
        try:
            listed = await call("GET", f"{self.base}/models", key=self._key)
            self._model = self._model or str(listed["data"][0]["id"])
        except (HttpError, KeyError, IndexError, TypeError) as error:
            raise DependencyError(
                f"rollout.server {self.base!r} does not list its models as the OpenAI API does: {error}; "
                "start it, or correct the address"
            ) from error
        prompt = np.array(_PROOF, dtype=np.int32)
        asked = GenerateRequest("proof", prompt, 16, frozenset(), temperature=0.5, seed=1)
        try:
            self.inexact = await self._doubt(asked, await self.complete(asked))
        except (HttpError, GenerationFault) as error:
            self.inexact = f"it refuses what a record of samples needs ({error})"
        if not self.inexact:
            with contextlib.suppress(HttpError, GenerationFault):
                self.streams = not await self._doubt(asked, await self.stream(asked))

    async def _doubt(self, asked: GenerateRequest, made: Answer | None) -> str:
        """Why `made` is no record of what was sampled; empty where it is one."""
        if made is None or made.missing:
            return made.missing if made else "it is cut short"
        ids = np.concatenate([asked.prompt_ids, made.ids])
        scored = (await self.score(ids))[len(asked.prompt_ids) :]
        worst = float(np.abs(scored - made.logprobs).max())
        if not worst <= _PROOF_TOLERANCE:
            return (
                f"its log-probabilities at temperature 0.5 are {worst:.3f} off those of one full pass: they are of the "
                "scaled or truncated distribution (vLLM: start it with --logprobs-mode raw_logprobs)"
            )
        return ""

    def salted(self, salt: str) -> None:
        """From here on no key is read that was cached under another salt."""
        self._salt = salt

    async def complete(self, request: GenerateRequest) -> Answer:
        """The whole answer."""
        body = request_body(self._model, request, self._salt)
        answer = await call("POST", f"{self.base}/completions", body, self._key)
        return Answer.of(answer, request, self._encode)

    async def stream(
        self, request: GenerateRequest, sampled: Callable[[int], None] = lambda token: None
    ) -> Answer | None:
        """The answer as far as it is there when the request is cut; None where it is not begun. `sampled`: told of every
        id as it comes."""
        pieces = Pieces()
        await unless_cut(request.cut, self._listen(request, pieces, sampled), grace_s=0)
        cut = pieces.ended is None
        return None if cut and not pieces.ids else pieces.answer(request, self._encode, cut=cut)

    async def _listen(self, request: GenerateRequest, pieces: Pieces, sampled: Callable[[int], None]) -> None:
        body = request_body(self._model, request, self._salt, streamed=True)
        async with contextlib.aclosing(events(f"{self.base}/completions", body, self._key)) as stream:
            async for event in stream:
                for token in pieces.take(event):
                    sampled(token)
        if pieces.ended is None:
            raise GenerationFault("the server's stream ended before its answer did")

    async def score(self, ids: Ids) -> Logprobs:
        """float32[n]: see `Engine.score`."""
        if len(ids) < 2:
            return np.zeros(len(ids), dtype=np.float32)
        body = score_body(self._model, ids, self._salt)
        return scores_of(await call("POST", f"{self.base}/completions", body, self._key), len(ids))

    async def reload(self, folder: Path) -> bool:
        """False where the server takes no weights. It must see the folder under the same path."""
        body = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
        try:
            await call("POST", f"{self.base.removesuffix('/v1')}/collective_rpc", body, self._key)
        except HttpError as error:
            if error.status in (404, 405, 501):
                return False
            raise
        return True

    async def look(self) -> None:
        """Returns where it answers."""
        await call("GET", f"{self.base}/models", key=self._key)
