"""HTTP/1.1 for the endpoint: requests read within bounds, answers written whole or in chunks.

Invariant: a request that is too large, too slow or no HTTP costs its connection and nothing else. One request after
another on a connection; none is read before the last was answered. Source: RFC 9112.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from services.rollout.agent.asked import RefusedError

MOST_HEAD = 32 << 10
MOST_BODY = 16 << 20
"""Bytes. A context of a million tokens is about 4 MiB of text."""
HEAD_S, BODY_S, IDLE_S = 10.0, 60.0, 600.0
_REASONS = {
    200: "OK", 400: "Bad Request", 401: "Unauthorized", 403: "Forbidden", 404: "Not Found", 405: "Method Not Allowed",
    411: "Length Required", 413: "Content Too Large", 429: "Too Many Requests", 500: "Internal Server Error",
    503: "Service Unavailable",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Request:
    """`headers` by lower-case name; of a repeated one the last."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def bearer(self) -> str:
        kind, _, token = self.headers.get("authorization", "").partition(" ")
        return token.strip() if kind.lower() == "bearer" else ""

    @property
    def keeps(self) -> bool:
        """The connection stays for another request."""
        return "close" not in self.headers.get("connection", "").lower()


async def read(reader: asyncio.StreamReader) -> Request | None:
    """The next request; None at the end of the connection. Raises `RefusedError` for what is no request of ours."""
    try:
        async with asyncio.timeout(IDLE_S):
            first = await reader.readline()
        if not first.strip():
            return None
        async with asyncio.timeout(HEAD_S):
            method, path, headers = await _head(first, reader)
        length = _length(headers)
        if headers.get("expect", "").lower() == "100-continue":
            raise RefusedError(400, "send the body without waiting for 100 Continue", param="expect")
        async with asyncio.timeout(BODY_S):
            body = await reader.readexactly(length)
    except (TimeoutError, asyncio.IncompleteReadError, ConnectionError):
        return None
    except (ValueError, asyncio.LimitOverrunError) as error:
        raise RefusedError(400, f"no HTTP request: {error}") from error
    return Request(method, path, headers, body)


async def _head(first: bytes, reader: asyncio.StreamReader) -> tuple[str, str, dict[str, str]]:
    method, target, version = first.decode("ascii").split()
    if not version.startswith("HTTP/1."):
        raise ValueError(f"version {version[:20]!r}")
    headers: dict[str, str] = {}
    size = len(first)
    while line := (await reader.readline()).strip():
        size += len(line)
        if size > MOST_HEAD:
            raise ValueError(f"a head of over {MOST_HEAD >> 10} KiB")
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.strip().lower()] = value.strip()
    return method, target.partition("?")[0], headers


def _length(headers: Mapping[str, str]) -> int:
    if "transfer-encoding" in headers:
        raise RefusedError(411, "send the body with Content-Length, not in chunks", param="transfer-encoding")
    text = headers.get("content-length", "0")
    if not text.isascii() or not text.isdigit():
        raise RefusedError(400, f"Content-Length is {text[:20]!r}", param="content-length")
    if int(text) > MOST_BODY:
        raise RefusedError(
            413, f"a body of {text[:20]} bytes: at most {MOST_BODY >> 20} MiB", param="content-length"
        )
    return int(text)


async def send(writer: asyncio.StreamWriter, status: int, body: dict[str, Any], *, keeps: bool) -> None:
    payload = json.dumps(body).encode()
    writer.write(_start(status, "application/json", keeps, f"Content-Length: {len(payload)}") + payload)
    await writer.drain()


async def send_start(writer: asyncio.StreamWriter, *, keeps: bool) -> None:
    """The head of a stream of events; `send_part` then, and `send_end`."""
    writer.write(
        _start(
            200,
            "text/event-stream; charset=utf-8",
            keeps,
            "Cache-Control: no-cache\r\nTransfer-Encoding: chunked",
        )
    )
    await writer.drain()


async def send_part(writer: asyncio.StreamWriter, part: bytes) -> None:
    writer.write(b"%x\r\n%s\r\n" % (len(part), part))
    await writer.drain()


async def send_end(writer: asyncio.StreamWriter) -> None:
    writer.write(b"0\r\n\r\n")
    await writer.drain()


def _start(status: int, kind: str, keeps: bool, more: str) -> bytes:
    lines = [
        f"HTTP/1.1 {status} {_REASONS.get(status, 'Error')}",
        f"Content-Type: {kind}",
        more,
        f"Connection: {'keep-alive' if keeps else 'close'}",
    ]
    return "\r\n".join([*lines, "", ""]).encode()
