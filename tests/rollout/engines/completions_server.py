"""A small server of the OpenAI completions API over a real engine, in a thread of its own.

`kind`: `full` returns ids and unscaled log-probabilities and takes weights; `text` returns text alone, as most
servers do; `scaled` reports log-probabilities of the distribution after temperature; `fixed` takes no weights.
"""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import numpy as np

from services.rollout.engines.base import Engine, GenerateRequest

KINDS = ("full", "text", "scaled", "fixed")


class CompletionsServer:
    def __init__(self, engine: Engine, weights: Path, kind: str = "full") -> None:
        assert kind in KINDS
        self._engine = engine
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
        self._engine.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        _, path, _ = (await reader.readuntil(b"\n")).decode().split()
        length = 0
        while line := (await reader.readuntil(b"\n")).strip():
            name, _, value = line.decode().partition(":")
            length = int(value) if name.lower() == "content-length" else length
        body = json.loads(await reader.readexactly(length)) if length else None
        work = asyncio.create_task(self._answer(path, body))
        gone = asyncio.create_task(reader.read(1))
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            status, answer = work.result()
            text = json.dumps(answer).encode()
            writer.write(
                f"HTTP/1.1 {status} OK\r\nTransfer-Encoding: chunked\r\n\r\n{len(text):x}\r\n".encode()
            )
            writer.write(text + b"\r\n0\r\n\r\n")
        gone.cancel()
        work.cancel()
        writer.close()

    async def _answer(self, path: str, body: Any) -> tuple[int, Any]:
        try:
            if path == "/v1/models":
                return 200, {"data": [{"id": "little"}]}
            if path == "/collective_rpc" and self._kind != "fixed":
                self._loads += 1
                weights = Path(body["kwargs"]["weights_path"]) / "model.safetensors"
                await self._engine.load_policy(weights, self._loads, None)
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
            scored = await self._engine.score(prompt, np.array([len(prompt)], dtype=np.int32))
            return {"text": "", "logprobs": {"token_logprobs": [None, *scored[1:].tolist(), -1.0]}}
        made = await self._engine.generate(
            GenerateRequest(
                "served",
                prompt,
                body["max_tokens"],
                frozenset(body.get("stop_token_ids", [2])),
                body["temperature"],
                body["top_p"],
                body["seed"],
            )
        )
        answer: dict[str, Any] = {"text": "7" * len(made.token_ids), "finish_reason": made.stop_reason}
        if self._kind != "text":
            scale = 1 / body["temperature"] if self._kind == "scaled" and body["temperature"] else 1.0
            answer["token_ids"] = made.token_ids.tolist()
            answer["logprobs"] = {"token_logprobs": (made.logprobs * np.float32(scale)).tolist()}
        return answer
