"""The HTTP endpoint of a rollout process: one server, one key an attempt.

Invariant: a key opens exactly one attempt, for as long as it lasts; a client that goes away frees its place in the
engine's batch; nothing that a client sends ends the server.

`POST /v1/chat/completions` and `GET /v1/models`, with `Authorization: Bearer <key>`, on this machine's own loopback.
The standard library's streams are enough: a handful of clients a process, two routes.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import structlog

from services.rollout.agent import answers, http
from services.rollout.agent.asked import Asked, RefusedError, read_request
from services.rollout.agent.desk import Answer, Desk
from services.rollout.engines.listening import Heard
from services.rollout.turns.unfolding import Unfolding

_log = structlog.get_logger(__name__)
_PREFIXES = ("/v1", "")
"""Clients are told a base URL with `/v1`; some put their own in front of a bare one."""


@dataclass(slots=True)
class Endpoint:
    """`await start()`, then `opened(desk)` gives a key; `close` at the end. Of one event loop."""

    model: str = "policy"
    port: int = 0
    _server: asyncio.Server | None = None
    _desks: dict[str, Desk] = field(default_factory=dict)
    _serving: dict[asyncio.Task[None], str] = field(default_factory=dict)
    """Connections, with the key that they used last."""

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=http.MOST_HEAD)
        self.port = int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Harmless twice."""
        if self._server is not None:
            self._server.close()
            self._server = None
        await self._end(list(self._serving))

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def opened(self, desk: Desk) -> str:
        """The key of a new attempt."""
        key = f"sk-{secrets.token_urlsafe(24)}"
        self._desks[key] = desk
        return key

    async def closed(self, key: str) -> None:
        """The attempt is over: its requests are cut off, and its key opens nothing."""
        desk = self._desks.pop(key, None)
        if desk is not None:
            desk.close()
        await self._end([task for task, used in self._serving.items() if used == key])

    async def _end(self, tasks: list[asyncio.Task[None]]) -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving[task] = ""
        try:
            await self._serve(reader, writer, task)
        except (ConnectionError, asyncio.CancelledError):
            pass  # the client is gone, or its attempt is over: nobody reads an answer
        finally:
            self._serving.pop(task, None)
            writer.close()

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, task: asyncio.Task[None]
    ) -> None:
        while True:
            desk: Desk | None = None
            try:
                request = await http.read(reader)
                if request is None:
                    return
                desk = self._desk(request)
                self._serving[task] = request.bearer
                keeps = await self._answer(desk, request, reader, writer) and request.keeps
            except RefusedError as error:
                if desk is not None:
                    desk.refuse(error)
                await http.send(writer, error.status, answers.error(error), keeps=False)
                return
            if not keeps:
                return

    def _desk(self, request: http.Request) -> Desk:
        desk = self._desks.get(request.bearer)
        if desk is None:
            raise RefusedError(401, "no attempt has this key, or it is over", code="invalid_api_key")
        return desk

    async def _answer(
        self, desk: Desk, request: http.Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """False where the connection can carry no more. Raises `RefusedError`."""
        route = next(
            (request.path.removeprefix(p) for p in _PREFIXES if request.path.startswith(f"{p}/")), ""
        )
        if route == "/models":
            _only(request, "GET")
            await http.send(writer, 200, answers.models([self.model]), keeps=request.keeps)
            return True
        if route != "/chat/completions":
            raise RefusedError(
                404, f"{request.path[:80]} is not served: /v1/chat/completions and /v1/models are"
            )
        _only(request, "POST")
        asked = read_request(request.body, desk.sampling, strict=desk.strict)
        heading = answers.Heading(f"chatcmpl-{secrets.token_hex(12)}", asked.model, int(time.time()))
        exchange = _Exchange(desk, asked, heading, writer, keeps=request.keeps)
        return await _unless_gone(reader, exchange.stream() if asked.stream else exchange.whole())


@dataclass(slots=True)
class _Exchange:
    """One request for a completion and its answer."""

    desk: Desk
    asked: Asked
    heading: answers.Heading
    writer: asyncio.StreamWriter
    keeps: bool

    async def whole(self) -> None:
        answer = await self._completed()
        await http.send(self.writer, 200, answers.completion(self.heading, answer), keeps=self.keeps)

    async def stream(self) -> None:
        """Text as it is sampled where it is only text; a turn that may hold calls is told once it is read."""
        live = not self.asked.schemas and not self.asked.stops
        pieces: asyncio.Queue[str | None] = asyncio.Queue()
        tokens = self.desk.tokens
        unfolding = Unfolding(lambda ids: tokens.answer(np.array(ids, dtype=np.int32)))
        work = asyncio.ensure_future(self._completed(lambda token: pieces.put_nowait(unfolding.add(token))))
        work.add_done_callback(lambda _: pieces.put_nowait(None))
        told, started = "", False
        try:
            while (piece := await pieces.get()) is not None:
                if piece and live:
                    await self._start(started)
                    started = True
                    told += piece
                    await self._part(answers.text_chunk(self.heading, piece))
            answer = await work
            await self._start(started)
            # What came live is the text's beginning, or a character of it was given otherwise: then nothing more fits.
            size = len(told) if answer.text.startswith(told) else len(answer.text)
            for chunk in answers.last_chunks(self.heading, answer, size, with_usage=self.asked.usage_chunk):
                await self._part(chunk)
            await http.send_part(self.writer, answers.DONE)
            await http.send_end(self.writer)
        except RefusedError as error:
            if not started:
                raise
            # A stream that has begun can say no more than that it breaks off.
            raise ConnectionResetError(str(error)) from error
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)

    async def _start(self, started: bool) -> None:
        if not started:
            await http.send_start(self.writer, keeps=self.keeps)
            await self._part(answers.first_chunk(self.heading))

    async def _part(self, chunk: dict[str, object]) -> None:
        await http.send_part(self.writer, answers.event(chunk))

    async def _completed(self, heard: Heard | None = None) -> Answer:
        try:
            return await self.desk.complete(self.asked, heard)
        except RefusedError:
            raise
        except Exception as error:
            # The attempt ends by it and tells it; the program is told that it is none of its doing.
            _log.warning("agent.fault", error=str(error))
            raise RefusedError(503, "the policy cannot answer; the attempt is over", code="fault") from error


async def _unless_gone(reader: asyncio.StreamReader, work: Coroutine[Any, Any, None]) -> bool:
    """Does the work, unless the client goes away; False where it sent more before its answer came."""
    task = asyncio.ensure_future(work)
    ear = asyncio.ensure_future(reader.read(1))
    try:
        await asyncio.wait({task, ear}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done() and ear.result() == b"":
            raise ConnectionResetError("the client went away")
        await task
        return not ear.done()
    finally:
        for one in (task, ear):
            one.cancel()
        await asyncio.gather(task, ear, return_exceptions=True)


def _only(request: http.Request, method: str) -> None:
    if request.method != method:
        raise RefusedError(405, f"{request.method[:20]} {request.path[:80]}: use {method}")
