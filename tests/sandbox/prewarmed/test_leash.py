"""The socket that holds a check: one report or one fault, whatever the other end does."""

from __future__ import annotations

import array
import asyncio
import json
import os
import socket
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.sandbox.cgroups.none import Look
from shared.sandbox.faults import SandboxFault
from shared.sandbox.prewarmed.leash import Leash, Report

REPORT = {"status": 256, "left": 2, "full": "/tmp", "cpu_s": 0.5}
LOOK = {"anon": 1.0, "shmem": 2.0, "cpu": 3.0, "threads": 4.0, "in_tmpfs": 5.0}


def held(body: Callable[[Leash, socket.socket], Awaitable[None]]) -> list[tuple[Look, int]]:
    """Runs `body` with a leash and the end that process 1 has; what it saw of looks."""
    looks: list[tuple[Look, int]] = []

    async def run() -> None:
        leash = Leash(lambda look, held: looks.append((look, held)))
        theirs = socket.socket(fileno=os.dup(leash.descriptor))
        leash.passed()
        try:
            await body(leash, theirs)
        finally:
            leash.close()
            theirs.close()

    asyncio.run(run())
    return looks


def tell(theirs: socket.socket, **body: object) -> None:
    theirs.send(json.dumps(body).encode())


def test_ready_looks_and_report() -> None:
    async def body(leash: Leash, theirs: socket.socket) -> None:
        tell(theirs, ready=True)
        await leash.ready
        tell(theirs, **LOOK)
        tell(theirs, **REPORT)
        assert await leash.report == Report(256, 2, "/tmp", 0.5)

    assert held(body) == [(Look(1.0, 2.0, 3.0, 4.0), 5)]


def test_a_job_of_any_size_and_its_descriptors() -> None:
    source = os.urandom(700_000)

    async def body(leash: Leash, theirs: socket.socket) -> None:
        heard, told = os.pipe()
        giving = asyncio.ensure_future(leash.give(["a", "b"], source, 3, [told]))
        job, ancillary, _, _ = await asyncio.to_thread(theirs.recvmsg, 1 << 16, 1024)
        got = b""
        while len(got) < len(source):
            got += await asyncio.to_thread(theirs.recv, 1 << 16)
        await giving
        passed = array.array("i", ancillary[0][2])
        os.write(passed[0], b"through")
        assert json.loads(job) == {"source": len(source), "cpu_s": 3, "arguments": ["a", "b"]}
        assert got == source and os.read(heard, 10) == b"through"
        for descriptor in (heard, told, passed[0]):
            os.close(descriptor)

    held(body)


def test_a_job_for_nobody_is_no_error() -> None:
    async def body(leash: Leash, theirs: socket.socket) -> None:
        theirs.close()
        await leash.give(["a"], b"x" * 100_000, 3, [])
        await asyncio.sleep(0.01)
        assert not leash.alive and not leash.report.done()

    held(body)


def test_letting_go_is_seen_and_the_report_still_comes() -> None:
    async def body(leash: Leash, theirs: socket.socket) -> None:
        leash.let_go()
        assert await asyncio.to_thread(theirs.recv, 10) == b""
        tell(theirs, **REPORT)
        assert (await leash.report).left == 2

    held(body)


@pytest.mark.parametrize("known_first", [False, True])
def test_the_report_of_a_check_that_never_read_its_job_counts(known_first: bool) -> None:
    """Ended at once, it resets the connection, which is told before the report that came earlier."""

    async def body(leash: Leash, theirs: socket.socket) -> None:
        await leash.give(["a"], b"x" * 100_000, 3, [])
        tell(theirs, **REPORT)
        theirs.close()
        if known_first:
            leash.lost()
        async with asyncio.timeout(10):
            assert (await leash.report).left == 2

    held(body)


def test_what_could_not_be_prepared_says_why() -> None:
    async def body(leash: Leash, theirs: socket.socket) -> None:
        tell(theirs, error="OSError: no room")
        with pytest.raises(SandboxFault, match="no room"):
            await leash.ready
        theirs.close()
        leash.lost()
        with pytest.raises(SandboxFault, match="no room"):
            await leash.report

    held(body)


@given(st.lists(st.sampled_from(["ready", "look", "report"]), max_size=6), st.booleans())
def test_it_ends_once_and_rightly(messages: list[str], pause: bool) -> None:
    """In any order, read before or only after the loss is known: the first report counts, else there is a fault."""
    bodies = {"ready": {"ready": True}, "look": LOOK, "report": REPORT}

    async def body(leash: Leash, theirs: socket.socket) -> None:
        for message in messages:
            tell(theirs, **bodies[message])
        theirs.close()
        if pause:
            await asyncio.sleep(0.001)
        leash.lost("gone")
        leash.lost("again")
        assert leash.ready.done() and leash.report.done()
        if "report" in messages:
            assert leash.report.result() == Report(256, 2, "/tmp", 0.5)
        else:
            with pytest.raises(SandboxFault, match="gone"):
                leash.report.result()

    held(body)
