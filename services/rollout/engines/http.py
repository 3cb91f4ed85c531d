"""One JSON request over HTTP/1.1, on the event loop; its answer whole, or event by event.

Invariant: a cancelled call closes its connection at once, which is how a server learns that nobody waits for the
tokens any more (a client in a thread would go on reading). Sources: RFC 9112; server-sent events as the OpenAI API
uses them (WHATWG HTML, 9.2).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any
from urllib.parse import urlsplit

_LIMIT = 1 << 20  # bytes of one header line or chunk head
_LARGEST = 1 << 28
_PIECE = 1 << 16


class HttpError(Exception):
    """`status` is 0 where no answer came."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


async def call(method: str, url: str, body: Any = None, key: str = "") -> Any:
    """The decoded JSON of a 2xx answer (None where it is empty). Raises `HttpError`."""
    async with _answered(method, url, body, key) as (status, pieces):
        text = b"".join([piece async for piece in pieces])
    _check(status, url, text)
    return _decoded(status, url, text) if text.strip() else None


async def events(url: str, body: Any, key: str = "") -> AsyncGenerator[Any, None]:
    """The decoded JSON of each event of a 2xx answer to a POST, up to `[DONE]` or its end. Raises `HttpError`."""
    async with _answered("POST", url, body, key) as (status, pieces):
        if not 200 <= status < 300:
            _check(status, url, b"".join([piece async for piece in pieces]))
        rest = b""
        async for piece in pieces:
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                name, _, data = line.strip().partition(b":")
                if name == b"data" and data.strip() == b"[DONE]":
                    return
                if name == b"data":
                    yield _decoded(status, url, data)


def _check(status: int, url: str, text: bytes) -> None:
    if not 200 <= status < 300:
        raise HttpError(status, f"{url} answered {status}: {text[:300].decode(errors='replace')}")


def _decoded(status: int, url: str, text: bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise HttpError(status, f"{url} answered {status} with something that is no JSON: {error}") from error


@contextlib.asynccontextmanager
async def _answered(
    method: str, url: str, body: Any, key: str
) -> AsyncIterator[tuple[int, AsyncIterator[bytes]]]:
    """Status and body of the answer, piece by piece as they come."""
    parts = urlsplit(url)
    secure = parts.scheme == "https"
    port = parts.port or (443 if secure else 80)
    try:
        reader, writer = await asyncio.open_connection(
            parts.hostname, port, ssl=True if secure else None, limit=_LIMIT
        )
    except OSError as error:
        raise HttpError(0, f"{url}: {error.strerror or error}") from error
    try:
        writer.write(_request(method, url, body, key))
        await writer.drain()
        status, headers = await _head(reader)
        yield status, _body(reader, headers)
    except (OSError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
        raise HttpError(0, f"{url}: the answer broke off: {error}") from error
    finally:
        writer.close()


def _request(method: str, url: str, body: Any, key: str) -> bytes:
    parts = urlsplit(url)
    payload = b"" if body is None else json.dumps(body).encode()
    lines = [
        f"{method} {parts.path or '/'}{'?' + parts.query if parts.query else ''} HTTP/1.1",
        f"Host: {parts.netloc.rpartition('@')[2]}",
        "Connection: close",
        "Content-Type: application/json",
        f"Content-Length: {len(payload)}",
        *([f"Authorization: Bearer {key}"] if key else []),
    ]
    return "\r\n".join([*lines, "", ""]).encode() + payload


async def _head(reader: asyncio.StreamReader) -> tuple[int, dict[bytes, bytes]]:
    """Status, and headers by their small names."""
    first = (await reader.readuntil(b"\n")).split()
    status = int(first[1]) if len(first) > 1 else 0
    headers: dict[bytes, bytes] = {}
    while line := (await reader.readuntil(b"\n")).strip():
        name, _, value = line.partition(b":")
        headers[name.lower()] = value.strip()
    return status, headers


async def _body(reader: asyncio.StreamReader, headers: dict[bytes, bytes]) -> AsyncIterator[bytes]:
    """Raises `ValueError` for one over `_LARGEST`."""
    if b"chunked" in headers.get(b"transfer-encoding", b"").lower():
        pieces = _chunks(reader)
    else:
        pieces = _plain(reader, int(headers.get(b"content-length", b"-1")))
    total = 0
    async for piece in pieces:
        total += len(piece)
        if total > _LARGEST:
            raise ValueError(f"over {_LARGEST} bytes")
        yield piece


async def _plain(reader: asyncio.StreamReader, length: int) -> AsyncIterator[bytes]:
    """`length` -1: to the end of the connection."""
    if length > _LARGEST:
        raise ValueError(f"{length} bytes")
    if length >= 0:
        yield await reader.readexactly(length)
        return
    while piece := await reader.read(_PIECE):
        yield piece


async def _chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Source: RFC 9112, section 7.1; trailers are not read, the connection is closed after them."""
    while size := int((await reader.readuntil(b"\n")).split(b";")[0], 16):
        if size > _LARGEST:
            raise ValueError(f"{size} bytes")
        yield await reader.readexactly(size)
        await reader.readexactly(2)
