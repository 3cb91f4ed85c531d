"""A run with a door: real jails, a real server on this machine."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from shared.errors import ConfigError
from shared.sandbox.command import Command
from shared.sandbox.limits import Limits
from shared.sandbox.outcome import Result
from shared.sandbox.sandbox import Sandbox
from shared.sandbox.settings import SandboxSettings

LIMITS = Limits(wall_s=20, cpu_s=10)
FETCH = """
import sys, urllib.request, urllib.error
for url in sys.argv[1:]:
    try:
        print(urllib.request.urlopen(url, timeout=5).read().decode())
    except urllib.error.HTTPError as error:
        print(error.code, error.read().decode().strip())
    except OSError as error:
        print("no", error)
"""
TUNNEL = """
import socket, sys
s = socket.create_connection(("127.0.0.1", 3128), timeout=5)
s.sendall(f"CONNECT {sys.argv[1]} HTTP/1.1\\r\\n\\r\\n".encode())
print(s.recv(4096).split(b"\\r\\n")[0].decode())
s.sendall(b"GET / HTTP/1.0\\r\\n\\r\\n")
print(s.makefile("rb").read().decode().split("\\n")[-1])
"""


async def served(test: Callable[[Sandbox, int], Awaitable[None]]) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.0 200 OK\r\n\r\nserved " + head.split(b"\r\n")[0])
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, Sandbox(SandboxSettings(network=(f"127.0.0.1:{port}", "localhost:80"))) as sandbox:
        await test(sandbox, port)


def fetch(network: tuple[str, ...], *urls: str, source: str = FETCH) -> Command:
    return Command(("python3", "-I", "-c", source, *urls), network=network)


def lines(result: Result) -> list[str]:
    assert result.ok, result
    return result.stdout.decode().splitlines()


def test_a_run_reaches_what_it_named_and_nothing_else() -> None:
    async def test(sandbox: Sandbox, port: int) -> None:
        place = f"127.0.0.1:{port}"
        there, elsewhere, direct = lines(
            await sandbox.run(
                fetch((place,), f"http://{place}/x?y=1", "http://example.org/", "http://127.0.0.1:1/"), LIMITS
            )
        )
        assert there == "served GET /x?y=1 HTTP/1.1"
        assert elsewhere == "403 example.org:80 is not among the places that this run may reach"
        assert direct.startswith("403 127.0.0.1:1 ")
        assert lines(await sandbox.run(fetch((place,), place, source=TUNNEL), LIMITS)) == [
            "HTTP/1.1 200 Connection established", "served GET / HTTP/1.0",
        ]  # fmt: skip
        around = f"import socket; print(socket.socket().connect_ex(('127.0.0.1', {port})))"
        assert lines(await sandbox.run(fetch((place,), source=around), LIMITS)) == ["111"]
        async with await sandbox.session(limits=LIMITS) as session:
            assert lines(await session.exec(fetch((place,), f"http://{place}/"))) == ["served GET / HTTP/1.1"]

    asyncio.run(served(test))


def test_without_a_network_there_is_no_door() -> None:
    async def test(sandbox: Sandbox, port: int) -> None:
        (said,) = lines(await sandbox.run(fetch((), f"http://127.0.0.1:{port}/"), LIMITS))
        assert said.startswith("no ")

    asyncio.run(served(test))


def test_a_name_for_this_machine_is_refused_and_an_undeclared_place_is_a_configuration() -> None:
    async def test(sandbox: Sandbox, port: int) -> None:
        (said,) = lines(await sandbox.run(fetch(("localhost:80",), "http://localhost/"), LIMITS))
        assert said == "403 localhost:80 is not an address out there"
        with pytest.raises(ConfigError, match="a run asks for pypi.org:443"):
            await sandbox.run(fetch(("pypi.org:443",), "http://x/"), LIMITS)

    asyncio.run(served(test))


def test_garbage_and_floods_at_the_door_do_no_harm() -> None:
    source = """
import socket
for text in (b"\\0" * 100 + b"\\r\\n\\r\\n", b"GET / HTTP/1.1\\r\\n\\r\\n", b"CONNECT x HTTP/1.1\\r\\n\\r\\n", b"A" * 100_000):
    s = socket.create_connection(("127.0.0.1", 3128), timeout=5)
    try:
        s.sendall(text); print(s.recv(100).split(b"\\r\\n")[0].decode())
    except OSError: print("closed")
held = [socket.create_connection(("127.0.0.1", 3128), timeout=5) for _ in range(40)]
print("held")
"""

    async def test(sandbox: Sandbox, port: int) -> None:
        place = f"127.0.0.1:{port}"
        said = lines(await sandbox.run(fetch((place,), source=source), LIMITS))
        assert (
            said[:3] == ["HTTP/1.1 400 Bad Request"] * 3 and said[3] in ("", "closed") and said[4] == "held"
        )
        assert lines(await sandbox.run(fetch((place,), f"http://{place}/"), LIMITS)) == [
            "served GET / HTTP/1.1"
        ]

    asyncio.run(served(test))


def test_a_door_with_a_home_is_that_server_and_no_way_out() -> None:
    """The operator allows nothing; several requests come over one connection, as clients with a pool send them."""
    keep = (
        "import http.client\n"
        "c = http.client.HTTPConnection('127.0.0.1', 3128, timeout=5)\n"
        "for path in ('/a', '/b'):\n"
        "    c.request('GET', path); print(c.getresponse().read().decode())\n"
    )

    async def test() -> None:
        asked = 0

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal asked
            while head := await reader.readuntil(b"\r\n\r\n"):
                asked += 1
                said = head.split(b" ")[1]
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(said), said))
                await writer.drain()

        def tolerant(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> asyncio.Future[None]:
            task = asyncio.ensure_future(answer(reader, writer))
            task.add_done_callback(lambda done: (done.cancelled() or done.exception(), writer.close()))
            return task

        server = await asyncio.start_server(tolerant, "127.0.0.1", 0)
        home = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server, Sandbox(SandboxSettings()) as sandbox:
            command = Command(("python3", "-I", "-c", keep), home=home)
            assert lines(await sandbox.run(command, LIMITS)) == ["/a", "/b"]
            names = "import os; print([name for name in os.environ if 'proxy' in name.lower()])"
            assert lines(await sandbox.run(Command(("python3", "-I", "-c", names), home=home), LIMITS)) == [
                "[]"
            ]
            out = Command(("python3", "-I", "-c", FETCH, "http://127.0.0.1:3128/c"), home=home)
            assert lines(await sandbox.run(out, LIMITS)) == ["/c"]
            tunnel = Command(("python3", "-I", "-c", TUNNEL, home), home=home)
            refused = await sandbox.run(tunnel, LIMITS)
            assert refused.stdout.startswith(b"HTTP/1.1 403")
            assert asked == 3
            server.close()
            gone = lines(await sandbox.run(out, LIMITS))
            assert gone[0].startswith("502 the server behind the door is gone")

    asyncio.run(test())
    with pytest.raises(ConfigError, match="is not host:port"):
        Command(("true",), home="nowhere")
