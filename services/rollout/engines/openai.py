"""The `openai` engine: a server that speaks the OpenAI completions API.

Invariant: it trains only if the server returns token ids and log-probabilities of the sampled tokens under the
unscaled distribution, which is proven when it is opened (what is reported for a hot sample must equal what one full
pass gives it); otherwise it evaluates only, and says why it refuses the rest. The server cannot stop inside an answer,
so a change of policy waits for what runs: every generation is of one version. A request that is cut is ended at the
server (its connection is closed) and is what was streamed of it; of a server that streams no ids it is nothing.

A server takes weights if it has vLLM's `/collective_rpc`; any other serves what it was started with, and counts as
serving a policy only if it reproduces that policy's canary.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from services.rollout.engines.announced import ModelShapes
from services.rollout.engines.base import (
    NOTHING,
    EngineDiedError,
    EngineLoad,
    EngineTimings,
    GenerateRequest,
    Generation,
    GenerationFault,
    Ids,
    InexactEngineError,
    Logprobs,
    check_canary,
)
from services.rollout.engines.calls import Calls
from services.rollout.engines.cut import is_asked, unless_cut
from services.rollout.engines.http import HttpError
from services.rollout.engines.openai_answer import Answer
from services.rollout.engines.openai_server import CompletionsApi
from shared.contracts import Canary
from shared.errors import AttestationError
from shared.settings import Settings

_WATCH_S = 1.0
R = TypeVar("R")
_SILENCES = 5  # looks in a row without an answer before the server counts as gone


class OpenAiEngine:
    """See `Engine`. `encode` makes ids of text where the server returns none."""

    def __init__(self, settings: Settings, encode: Callable[[str], Ids], key: str = "") -> None:
        rollout = settings.rollout
        self._server = CompletionsApi(rollout.server, rollout.server_model, key, encode)
        self._max_batch = settings.rollout.max_batch
        self._shapes = ModelShapes(Path(settings.model.path), settings.model.dtype)
        self._bounds = self._shapes.bounds(settings.rollout.max_batch_tokens)
        self._scratch = Path(tempfile.mkdtemp(prefix="temper-openai-"))
        self._version = -1
        self._loads = 0
        self._paused = False
        self._going = asyncio.Event()
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._running = 0
        self._calls = Calls()
        self._sampled = 0

    @classmethod
    def open(cls, settings: Settings, encode: Callable[[str], Ids]) -> OpenAiEngine:
        """Asks the server what it is; call it in a thread. Raises `DependencyError` where it does not answer."""
        engine = cls(settings, encode, os.environ.get("OPENAI_API_KEY", ""))
        asyncio.run(engine._server.introduce())
        return engine

    @property
    def name(self) -> str:
        return "openai"

    @property
    def exact(self) -> bool:
        return not self._server.inexact

    @property
    def longest(self) -> int:
        return self._bounds.longest

    async def generate(self, request: GenerateRequest) -> Generation:
        if request.exact and not self.exact:
            raise InexactEngineError(
                f"request {request.request_id}: rollout.server {self._server.base!r} may evaluate, not train: "
                f"{self._server.inexact}"
            )
        self._bounds.check(request)
        return await self._call(self._generate(request))

    async def pause(self) -> None:
        """The server cannot stop inside an answer: waits for those that run."""
        self._paused = True
        self._going.clear()
        await self._quiet.wait()

    async def resume(self) -> None:
        self._paused = False
        if self._version >= 0:
            self._going.set()

    async def load_policy(self, weights: Path, version: int, canary: Canary | None) -> None:
        self._version = -1
        self._going.clear()
        await self._quiet.wait()
        await self._call(self._load(weights, version, canary))
        self._version = version
        if not self._paused:
            self._going.set()

    async def score(self, token_ids: Ids, lengths: Ids) -> Logprobs:
        parts = np.split(token_ids, np.cumsum(lengths)[:-1])
        scored = await asyncio.gather(*(self._call(self._server.score(part)) for part in parts))
        return np.concatenate(scored)

    def capacity(self) -> EngineLoad:
        return EngineLoad(
            max_batch=self._max_batch,
            running=self._running,
            waiting=max(0, len(self._calls) - self._running),
            version=self._version,
            sampled_tokens=self._sampled,
            decode_steps=0,
        )

    async def watch(self) -> None:
        silences = 0
        while not self._calls.closed:
            try:
                await asyncio.wait_for(self._server.look(), 10)
                silences = 0
            except (HttpError, TimeoutError) as error:
                silences += 1
                if silences >= _SILENCES:
                    raise EngineDiedError(
                        f"rollout.server {self._server.base!r} did not answer {silences} times in a row: {error}; start it again"
                    ) from error
            await asyncio.sleep(_WATCH_S)

    def close(self) -> None:
        if self._calls.close():
            shutil.rmtree(self._scratch, ignore_errors=True)

    async def _call(self, work: Coroutine[Any, Any, R]) -> R:
        """What `close` can end."""
        try:
            return await self._calls.run(work)
        except HttpError as error:
            raise GenerationFault(f"rollout.server: {error}") from error

    async def _generate(self, request: GenerateRequest) -> Generation:
        submitted = time.monotonic()
        while not self._going.is_set() or self._running >= self._max_batch:
            if is_asked(request.cut):
                return NOTHING
            await unless_cut(request.cut, self._going.wait(), grace_s=0)
            if self._running >= self._max_batch:
                await asyncio.sleep(0.005)
        started = time.monotonic()
        self._running += 1
        self._quiet.clear()
        version = self._version
        try:
            made = await self._made(request)
        finally:
            self._running -= 1
            if not self._running:
                self._quiet.set()
        if made is None:
            return NOTHING
        if made.missing and request.exact:
            raise InexactEngineError(f"request {request.request_id}: the server's answer: {made.missing}")
        return Generation(
            token_ids=made.ids,
            logprobs=made.logprobs,
            versions=((len(made.ids), version),),
            stop_reason=made.stop_reason,
            timings=EngineTimings(queued=started - submitted, decode=time.monotonic() - started),
        )

    async def _made(self, request: GenerateRequest) -> Answer | None:
        """None of a request that was cut before anything of it came."""
        if is_asked(request.cut):
            return None
        wanted = request.cut is not None or request.heard is not None
        if wanted and request.exact and self._server.streams:
            return await self._server.stream(request, lambda token: self._heard(request, token))
        whole = await unless_cut(request.cut, self._server.complete(request), grace_s=0)
        self._sampled += 0 if whole is None else len(whole.ids)
        return whole

    def _heard(self, request: GenerateRequest, token: int) -> None:
        self._sampled += 1
        if request.heard is not None:
            request.heard(token)

    async def _load(self, weights: Path, version: int, canary: Canary | None) -> None:
        await asyncio.to_thread(self._shapes.check, weights)
        self._loads += 1
        self._server.salted(f"temper-{self._loads}")
        takes_weights = await self._server.reload(self._folder_of(weights))
        if not self.exact:
            return  # it cannot be attested; nothing that it makes is trained on
        try:
            if canary is not None:
                parts = np.split(canary.token_ids, np.cumsum(canary.lengths)[:-1])
                got = np.concatenate([await self._server.score(part) for part in parts])
                check_canary(canary, got, version)
        except AttestationError as error:
            if takes_weights:
                raise
            raise AttestationError(
                f"{error}; rollout.server {self._server.base!r} takes no weights (no /collective_rpc) and serves others: "
                "start it with VLLM_SERVER_DEV_MODE=1, or use rollout.engine = 'vllm'"
            ) from error

    def _folder_of(self, weights: Path) -> Path:
        """One that holds a link to the file: one machine with the server, or a shared disk."""
        folder = self._scratch / str(self._loads)
        shutil.rmtree(self._scratch, ignore_errors=True)
        folder.mkdir(parents=True)
        (folder / "model.safetensors").symlink_to(weights.absolute())
        return folder
