"""An HTTP proxy at the door of one run's network.

Invariant: it connects only where `Allowed` says, to the address that was judged and no other (a name is resolved once,
here); what it was asked for and refused is told. It ends with its run.

A door may have a home: a server of ours that answers every request that names no place (origin form, RFC 9112, section
3.2.1), so that a program reaches it as a server on its own machine, whether or not it knows of proxies. Such a
connection is passed on as it is, for as many requests as it carries.

CONNECT for everything that is encrypted (RFC 9110, section 9.3.6) and absolute-form requests for plain HTTP (RFC 9112,
section 3.2.2); one request a connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

from shared.sandbox.network.allowed import Allowed, Place, parse_place

PORT = 3128
MOST_CONNECTIONS = 16
MOST_HEAD = 16 << 10
CONNECT_S, HEAD_S = 10.0, 10.0
CHUNK = 1 << 16

Resolve = Callable[[str, int], Awaitable[list[str]]]
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


ADDRESS = f"127.0.0.1:{PORT}"
"""Of the door, inside."""


def environment(home: str = "") -> dict[str, str]:
    """What programs read to find the door. With a home they must not ask a proxy for the door itself."""
    url = f"http://{ADDRESS}"
    names = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
    direct = "127.0.0.1" if home else ""
    return {**dict.fromkeys(names, url), "no_proxy": direct, "NO_PROXY": direct}


async def resolve(host: str, port: int) -> list[str]:
    """Addresses of a name, by the system's resolver. Raises `OSError`."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


class Proxy:
    """Serves the listening socket behind `door` until `close`. `refused`: places that were asked for in vain."""

    def __init__(self, door: int, allowed: Allowed, resolve: Resolve = resolve, home: str = "") -> None:
        self._home = parse_place(home) if home else None
        self._socket = socket.socket(fileno=door)
        self._allowed = allowed
        self._resolve = resolve
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()
        self.refused: set[str] = set()

    async def start(self) -> None:
        self._socket.setblocking(False)
        self._server = await asyncio.start_server(self._accept, sock=self._socket, limit=MOST_HEAD)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._serving) >= MOST_CONNECTIONS:
            await _say(writer, "503 Service Unavailable", f"at most {MOST_CONNECTIONS} connections at once")
            writer.close()
            return
        self._serving.add(task)
        try:
            await self._serve(reader, writer)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            # The program's connection or the far end broke: both see it by themselves.
            pass
        finally:
            self._serving.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(HEAD_S):
            head = await reader.readuntil(b"\r\n\r\n")
        request, _, rest = head.partition(b"\r\n")
        if self._home is not None and request.partition(b" ")[2].startswith(b"/"):
            await self._serve_home(self._home, head, reader, writer)
            return
        asked = _asked(request)
        if asked is None:
            await _say(writer, "400 Bad Request", "CONNECT host:port, or an absolute http:// address")
            return
        method, host, port, line = asked
        far = await self._connect(host, port)
        if isinstance(far, str):
            self.refused.add(f"{host}:{port}")
            await _say(writer, "403 Forbidden", far)
            return
        far_reader, far_writer = far
        try:
            if method == "CONNECT":
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            else:
                far_writer.write(line + b"\r\nConnection: close\r\n" + _without_hops(rest))
            async with asyncio.TaskGroup() as group:
                group.create_task(_pump(reader, far_writer))
                group.create_task(_pump(far_reader, writer))
        except* OSError:
            pass
        finally:
            far_writer.close()

    async def _serve_home(
        self, home: Place, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(home.host, home.port)
        except OSError as error:
            await _say(
                writer, "502 Bad Gateway", f"the server behind the door is gone: {error.strerror or error}"
            )
            return
        try:
            far_writer.write(head)
            async with asyncio.TaskGroup() as group:
                group.create_task(_pump(reader, far_writer))
                group.create_task(_pump(far_reader, writer))
        except* OSError:
            pass
        finally:
            far_writer.close()

    async def _connect(self, host: str, port: int) -> Streams | str:
        """The far end, or why there is none."""
        if not self._allowed.names(host, port):
            return f"{host}:{port} is not among the places that this run may reach"
        try:
            async with asyncio.timeout(CONNECT_S):
                addresses = await self._resolve(host, port)
                good = [address for address in addresses if self._allowed.address(address, host, port)]
                if not good:
                    return f"{host}:{port} is not an address out there"
                return await asyncio.open_connection(good[0], port)
        except TimeoutError:
            return f"{host}:{port} did not answer within {CONNECT_S:g} s"
        except OSError as error:
            return f"{host}:{port}: {error.strerror or error}"


def _asked(request: bytes) -> tuple[str, str, int, bytes] | None:
    """Method, host, port, and the request line for the far end."""
    try:
        method, target, version = request.decode("ascii").split(" ")
        if version not in ("HTTP/1.0", "HTTP/1.1"):
            return None
        parts = urlsplit(f"//{target}" if method == "CONNECT" else target)
        if method != "CONNECT" and parts.scheme != "http":
            return None
        port = parts.port or (None if method == "CONNECT" else 80)
        if parts.hostname is None or port is None:
            return None
    except ValueError:
        return None
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return method, parts.hostname, port, f"{method} {path} HTTP/1.1".encode("ascii")


def _without_hops(headers: bytes) -> bytes:
    """Without the fields that were meant for us (RFC 9110, section 7.6.1)."""
    lines = headers.split(b"\r\n")
    hops = (b"proxy-connection", b"proxy-authorization", b"connection")
    return b"\r\n".join(line for line in lines if line.partition(b":")[0].strip().lower() not in hops)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while chunk := await reader.read(CHUNK):
        writer.write(chunk)
        await writer.drain()
    with contextlib.suppress(OSError):
        writer.write_eof()


async def _say(writer: asyncio.StreamWriter, status: str, reason: str) -> None:
    body = f"{reason}\n".encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    writer.write(head.encode() + body)
    with contextlib.suppress(OSError):
        await writer.drain()
