"""A small server of the OpenAI completions API over a real engine, in a thread of its own.

`kind`: `full` returns ids and unscaled log-probabilities, whole or as a stream, and takes weights; `whole` is full, but
never streams; `text` returns text alone, as most servers do; `scaled` reports log-probabilities of the distribution
after temperature; `fixed` takes no weights.
"""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import numpy as np

from services.rollout.engines.base import Engine, GenerateRequest
from services.rollout.engines.listening import generate

KINDS = ("full", "whole", "text", "scaled", "fixed")


class CompletionsServer:
    def __init__(self, engine: Engine, weights: Path, kind: str = "full") -> None:
        assert kind in KINDS
        self.engine = engine
        self._kind = kind
        self._loads = 0
        self.open = True
        self.salts: list[str] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server = self._do(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/v1"
        self._do(engine.load_policy(weights, 0, None))

    def _do(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def close(self) -> None:
        self.open = False
        self._loop.call_soon_threadsafe(self._server.close)
        self._do(asyncio.sleep(0.01))
        self.engine.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        _, path, _ = (await reader.readuntil(b"\n")).decode().split()
        length = 0
        while line := (await reader.readuntil(b"\n")).strip():
            name, _, value = line.decode().partition(":")
            length = int(value) if name.lower() == "content-length" else length
        body = json.loads(await reader.readexactly(length)) if length else None
        streamed = self._kind == "full" and body is not None and body.get("stream")
        work = asyncio.create_task(
            self._streamed(body, writer) if streamed else self._whole(path, body, writer)
        )
        gone = asyncio.create_task(reader.read(1))
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        gone.cancel()
        work.cancel()
        await asyncio.gather(work, gone, return_exceptions=True)
        writer.close()

    async def _whole(self, path: str, body: Any, writer: asyncio.StreamWriter) -> None:
        status, answer = await self._answer(path, body)
        writer.write(f"HTTP/1.1 {status} OK\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        _write_chunk(writer, json.dumps(answer).encode())
        _write_chunk(writer, b"")

    async def _streamed(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        """Events of as many tokens as came meanwhile; their log-probabilities are of one full pass."""
        self.salts.append(body["cache_salt"])
        asked, ids = _request(body), list[int]()
        more = asyncio.Event()

        def heard(token: int) -> None:
            ids.append(token)
            more.set()

        work = asyncio.create_task(generate(self.engine, asked, heard))
        work.add_done_callback(lambda done: more.set())
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        told = 0
        try:
            while not work.done() or told < len(ids):
                await more.wait()
                more.clear()
                whole = np.array([*asked.prompt_ids, *ids], dtype=np.int32)
                scored = await self.engine.score(whole, np.array([len(whole)], dtype=np.int32))
                new = whole[len(asked.prompt_ids) :][told:].tolist()
                told += len(new)
                last = work.done() and told == len(ids)
                piece = {
                    "text": "7" * len(new),
                    "token_ids": new,
                    "logprobs": {"token_logprobs": scored[len(whole) - len(new) :].tolist()},
                    "finish_reason": work.result().stop_reason if last else None,
                }
                _write_chunk(writer, f"data: {json.dumps({'choices': [piece]})}\n\n".encode())
        finally:
            work.cancel()
        _write_chunk(writer, b"data: [DONE]\n\n")
        _write_chunk(writer, b"")

    async def _answer(self, path: str, body: Any) -> tuple[int, Any]:
        try:
            if path == "/v1/models":
                return 200, {"data": [{"id": "little"}]}
            if path == "/collective_rpc" and self._kind != "fixed":
                self._loads += 1
                weights = Path(body["kwargs"]["weights_path"]) / "model.safetensors"
                await self.engine.load_policy(weights, self._loads, None)
                return 200, None
            if path == "/v1/completions":
                return 200, {"choices": [await self._complete(body)]}
        except Exception as error:
            return 400, {"error": str(error)}
        return 404, {"error": path}

    async def _complete(self, body: dict[str, Any]) -> dict[str, Any]:
        self.salts.append(body.get("cache_salt", ""))
        prompt = np.array(body["prompt"], dtype=np.int32)
        if body.get("echo"):
            scored = await self.engine.score(prompt, np.array([len(prompt)], dtype=np.int32))
            return {"text": "", "logprobs": {"token_logprobs": [None, *scored[1:].tolist(), -1.0]}}
        made = await self.engine.generate(_request(body))
        answer: dict[str, Any] = {"text": "7" * len(made.token_ids), "finish_reason": made.stop_reason}
        if self._kind != "text":
            scale = 1 / body["temperature"] if self._kind == "scaled" and body["temperature"] else 1.0
            answer["token_ids"] = made.token_ids.tolist()
            answer["logprobs"] = {"token_logprobs": (made.logprobs * np.float32(scale)).tolist()}
        return answer


def _request(body: dict[str, Any]) -> GenerateRequest:
    return GenerateRequest(
        "served",
        np.array(body["prompt"], dtype=np.int32),
        body["max_tokens"],
        frozenset(body.get("stop_token_ids", [2])),
        body["temperature"],
        body["top_p"],
        body["seed"],
    )


def _write_chunk(writer: asyncio.StreamWriter, body: bytes) -> None:
    writer.write(f"{len(body):x}\r\n".encode() + body + b"\r\n")
