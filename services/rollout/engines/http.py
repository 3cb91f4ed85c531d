"""One JSON request over HTTP/1.1, on the event loop.

Invariant: a cancelled call closes its connection at once, which is how a server learns that nobody waits for the
tokens any more (a client in a thread would go on reading). Source: RFC 9112.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.parse import urlsplit

_LIMIT = 1 << 20  # bytes of one header line or chunk head
_LARGEST = 1 << 28


class HttpError(Exception):
    """`status` is 0 where no answer came."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


async def call(method: str, url: str, body: Any = None, key: str = "") -> Any:
    """The decoded JSON of a 2xx answer (None where it is empty). Raises `HttpError`."""
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
        status, text = await _answer(reader)
    except (OSError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
        raise HttpError(0, f"{url}: the answer broke off: {error}") from error
    finally:
        writer.close()
    if not 200 <= status < 300:
        raise HttpError(status, f"{url} answered {status}: {text[:300].decode(errors='replace')}")
    try:
        return json.loads(text) if text.strip() else None
    except ValueError as error:
        raise HttpError(status, f"{url} answered {status} with something that is no JSON: {error}") from error


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


async def _answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    first = (await reader.readuntil(b"\n")).split()
    status = int(first[1]) if len(first) > 1 else 0
    headers: dict[bytes, bytes] = {}
    while line := (await reader.readuntil(b"\n")).strip():
        name, _, value = line.partition(b":")
        headers[name.lower()] = value.strip()
    if b"chunked" in headers.get(b"transfer-encoding", b"").lower():
        return status, await _chunks(reader)
    length = int(headers.get(b"content-length", b"-1"))
    if length > _LARGEST:
        raise ValueError(f"{length} bytes")
    return status, await (reader.read() if length < 0 else reader.readexactly(length))


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    """Source: RFC 9112, section 7.1; trailers are not read, the connection is closed after them."""
    body = bytearray()
    while size := int((await reader.readuntil(b"\n")).split(b";")[0], 16):
        body += await reader.readexactly(size)
        await reader.readexactly(2)
        if len(body) > _LARGEST:
            raise ValueError(f"over {_LARGEST} bytes")
    return bytes(body)
