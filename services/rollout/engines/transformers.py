"""The `transformers` engine: one thread, one model, one batch across all tasks.

Invariant: the model, its batch and its weights are touched by the decode thread alone; a command (request, new
policy, score) takes effect between two decode steps; without attested weights nothing is decoded.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from services.rollout.engines.admission import Admission
from services.rollout.engines.base import (
    EngineDiedError,
    EngineLoad,
    GenerateRequest,
    Generation,
    GenerationFault,
    Ids,
    Logprobs,
    check_canary,
)
from services.rollout.engines.batch import Batch
from services.rollout.engines.bounds import Bounds
from services.rollout.engines.decoder import Decoder, load_model
from shared.contracts import Canary
from shared.errors import DependencyError, TemperError
from shared.plain_errors import one_line
from shared.settings import Settings

# When idle, so long is waited for the rest of a group: its samples are submitted one after another, and share a
# prompt that is then read once.
_GATHER_S = 0.003
# A failed step may be a request's fault or a moment without memory. A device that has failed never comes back, and
# tasks retried on it would all become dead letters: it is dead if the shortest full pass fails too, or at the third
# failed step in a row.
_FAILED_STEPS = 3


@dataclass(frozen=True, slots=True)
class _Reply:
    """A future of an event loop, settled from another thread."""

    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]

    def done(self, value: Any) -> None:
        self._settle(self.future.set_result, value)

    def failed(self, error: Exception) -> None:
        self._settle(self.future.set_exception, error)

    def gone(self) -> bool:
        return self.future.cancelled() or self.loop.is_closed()

    def _settle(self, settle: Callable[[Any], None], value: Any) -> None:
        def unless_gone() -> None:
            if not self.future.done():
                settle(value)

        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(unless_gone)


@dataclass(frozen=True, slots=True)
class _Command:
    """`run` is called by the decode thread; what it raises goes to `reply`."""

    run: Callable[[], None]
    reply: _Reply


class TransformersEngine:
    """See `Engine`. `decoder` is given away: nobody else may touch it from here on."""

    def __init__(self, decoder: Decoder, max_batch: int, max_batch_tokens: int) -> None:
        self._decoder = decoder
        self._bounds = Bounds(min(max_batch_tokens, decoder.max_length), decoder.vocabulary)
        self._max_batch = max_batch
        self._batch = Batch(decoder, Admission(max_batch, max_batch_tokens), time.monotonic)
        self._commands: queue.SimpleQueue[_Command | None] = queue.SimpleQueue()
        self._attested = False
        self._paused = False
        self._closed = False
        self._failed_steps = 0
        self._death = ""
        self._door = threading.Lock()
        self._over = False
        """The decode thread takes no more commands; it and every put are under the lock, so that none is left lying."""
        self._watchers: list[_Reply] = []
        self._thread = threading.Thread(target=self._loop, name="decode", daemon=True)
        self._thread.start()

    @property
    def name(self) -> str:
        return "transformers"

    @property
    def exact(self) -> bool:
        return True

    @property
    def longest(self) -> int:
        return self._bounds.longest

    @classmethod
    def open(cls, settings: Settings) -> TransformersEngine:
        """Loads the model of the settings: seconds, so call it in a thread.

        Raises as `load_model`, and `DependencyError` for a model whose code does not work with this engine.
        """
        import torch

        rollout = settings.rollout
        if rollout.threads:
            torch.set_num_threads(rollout.threads)
        model = load_model(settings.model.path, settings.model.dtype, rollout.device)
        try:
            decoder = Decoder(model, rollout.max_batch)
        except TemperError:
            raise
        except Exception as error:  # whatever a foreign architecture raises in its first forward passes
            raise DependencyError(
                f"model.path {settings.model.path!r}: {type(model).__name__} does not run in the transformers engine: "
                f"{one_line(error)}"
            ) from error
        return cls(decoder, rollout.max_batch, rollout.max_batch_tokens)

    async def generate(self, request: GenerateRequest) -> Generation:
        self._bounds.check(request)
        reply = self._reply()
        self._send(_Command(lambda: self._batch.submit(request, reply), reply))
        generation: Generation = await reply.future
        return generation

    async def pause(self) -> None:
        await self._set_paused(True)

    async def resume(self) -> None:
        await self._set_paused(False)

    async def _set_paused(self, paused: bool) -> None:
        reply = self._reply()

        def between_steps() -> None:
            self._paused = paused
            reply.done(None)

        self._send(_Command(between_steps, reply))
        await reply.future

    async def load_policy(self, weights: Path, version: int, canary: Canary | None) -> None:
        reply = self._reply()
        self._send(_Command(lambda: self._swap(weights, version, canary, reply), reply))
        await reply.future

    async def score(self, token_ids: Ids, lengths: Ids) -> Logprobs:
        reply = self._reply()
        self._send(_Command(lambda: reply.done(self._decoder.score(token_ids, lengths)), reply))
        scored: Logprobs = await reply.future
        return scored

    def capacity(self) -> EngineLoad:
        batch = self._batch
        return EngineLoad(
            max_batch=self._max_batch,
            running=len(batch.rows),
            waiting=batch.waiting,
            version=batch.version if self._attested else -1,
            sampled_tokens=batch.sampled_tokens,
            decode_steps=batch.steps,
            kv_use=batch.kv_use,
        )

    async def watch(self) -> None:
        reply = self._reply()
        with contextlib.suppress(GenerationFault):  # closed before it was asked
            self._send(_Command(lambda: self._watchers.append(reply), reply))
            await reply.future
        if self._death:
            raise EngineDiedError(self._death)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._commands.put(None)
            self._thread.join()

    def _reply(self) -> _Reply:
        loop = asyncio.get_running_loop()
        return _Reply(loop, loop.create_future())

    def _send(self, command: _Command) -> None:
        with self._door:
            if self._death:
                raise GenerationFault(self._death)
            if self._closed or self._over:
                raise GenerationFault("the engine is closed: it takes no more requests")
            self._commands.put(command)

    def _swap(self, weights: Path, version: int, canary: Canary | None, reply: _Reply) -> None:
        self._attested = False
        self._decoder.load(weights)
        if canary is not None:
            check_canary(canary, self._decoder.score(canary.token_ids, canary.lengths), version)
        self._batch.version = version
        self._attested = True
        reply.done(None)

    def _loop(self) -> None:
        """The decode thread. An error of a step fails the rows that were in it; the loop goes on while there is hope."""
        while not self._death and self._obey():
            if not self._attested or self._paused:
                continue
            try:
                self._batch.advance()
                self._failed_steps = 0
            except Exception as error:  # noqa: BLE001 - every error must reach those who wait
                self._batch.fail_all(GenerationFault(f"a decode step failed: {error}"))
                self._count_failure(error)
        self._end(self._death or "the engine was closed while this request ran")

    def _count_failure(self, error: Exception) -> None:
        self._failed_steps += 1
        shortest = np.zeros(2, dtype=np.int32)
        try:
            self._decoder.score(shortest, np.array([2], dtype=np.int32))
            dead = self._failed_steps >= _FAILED_STEPS
        except Exception:  # noqa: BLE001 - whatever it is, nothing runs on this device any more
            dead = True
        if dead:
            self._death = (
                f"the transformers engine died: a decode step failed with {one_line(error)} and the engine did not "
                "recover; start this worker again"
            )

    def _end(self, reason: str) -> None:
        """Everybody who waits hears of it."""
        with self._door:
            self._over = True
        self._batch.fail_all(GenerationFault(reason))
        for watcher in self._watchers:
            if self._death:
                watcher.failed(EngineDiedError(self._death))
            else:
                watcher.done(None)
        while not self._commands.empty():
            left = self._commands.get()
            if left is not None:
                left.reply.failed(
                    GenerationFault(self._death or "the engine was closed before this request ran")
                )

    def _obey(self) -> bool:
        """Runs what was commanded since the last step; waits while there is nothing to decode. False at the end."""
        busy = self._attested and not self._paused and bool(self._batch.rows or self._batch.waiting)
        timeout: float | None = 0.0 if busy else None
        while True:
            try:
                command = self._commands.get(block=timeout != 0.0, timeout=timeout)
            except queue.Empty:
                return True
            if command is None:
                return False
            try:
                command.run()
            except Exception as error:  # noqa: BLE001 - the caller gets it
                command.reply.failed(error)
            timeout = 0.0 if busy else _GATHER_S
