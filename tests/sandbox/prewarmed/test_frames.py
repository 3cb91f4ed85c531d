"""Whole messages to and from a check, whatever the other side does."""

from __future__ import annotations

import asyncio
import os
import socket
import textwrap
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from shared.sandbox.limits import Limits
from shared.sandbox.outcome import Outcome, Result
from shared.sandbox.prewarmed.channel import Channel
from shared.sandbox.prewarmed.child import Check, Child
from tests.sandbox.machines import Jailer
from tests.sandbox.prewarmed.parts import SMALL, nothing_left

ECHO = """
import temper_channel
while (frame := temper_channel.read()) is not None:
    temper_channel.write(frame[::-1])
print("over")
"""


def talk(
    jail: Jailer, source: str, body: Callable[[Child], Awaitable[None]], limits: Limits = SMALL
) -> Result:
    async def run() -> Result:
        async with jail.sandbox.prewarmed.open(textwrap.dedent(source), limits) as child:
            await body(child)
            return await child.finish()

    return jail.wait(run())


def test_frames_of_all_sizes(jail: Jailer) -> None:
    async def body(child: Child) -> None:
        for size in (0, 1, 4, 65_535, 65_536, 300_000):
            frame = os.urandom(size)
            assert await child.send(frame)
            assert await child.receive() == frame[::-1]

    result = talk(jail, ECHO, body)
    assert result.ok and result.stdout == b"over\n"


def test_frames_written_before_an_end_are_still_read(jail: Jailer) -> None:
    async def body(child: Child) -> None:
        assert (await child.finish()).ok
        assert [await child.receive() for _ in range(3)] == [b"one", b"two", None]

    talk(jail, "import temper_channel as c; c.write(b'one'); c.write(b'two')", body)


def test_a_check_that_leaves_is_an_end_and_not_an_error(jail: Jailer) -> None:
    async def body(child: Child) -> None:
        assert await child.receive() is None
        await child.finish()
        assert not await child.send(b"x")

    result = talk(jail, "import os; os._exit(3)", body)
    assert (result.outcome, result.exit_code) == (Outcome.EXITED, 3)


def test_a_check_that_closes_its_channel_and_stays(jail: Jailer) -> None:
    async def body(child: Child) -> None:
        assert await child.receive() is None

    result = talk(jail, "import os, time; os.close(3); time.sleep(60)", body, replace(SMALL, wall_s=0.6))
    assert result.outcome is Outcome.WALL_LIMIT


def test_a_check_that_never_answers_is_ended_by_its_limits(jail: Jailer) -> None:
    async def body(child: Child) -> None:
        await child.send(b"question")
        assert await child.receive() is None

    result = talk(jail, "while True: pass", body, replace(SMALL, cpu_s=0.4))
    assert result.outcome is Outcome.CPU_LIMIT


def test_a_check_that_never_reads_holds_up_a_sender_until_its_limits(jail: Jailer) -> None:
    async def body(child: Child) -> None:
        assert not await child.send(b"x" * 4_000_000)

    result = talk(jail, "import time; time.sleep(60)", body, replace(SMALL, wall_s=0.6))
    assert result.outcome is Outcome.WALL_LIMIT


@pytest.mark.parametrize("written", ["b'\\xff' * 64", "b'\\x00\\x00\\x00\\x09short'", "b'\\x00'"])
def test_what_is_no_frame_is_an_end(jail: Jailer, written: str) -> None:
    async def body(child: Child) -> None:
        assert await child.receive() is None
        assert await child.receive() is None

    result = talk(jail, f"import os; os.write(3, {written})", body)
    assert result.exit_code == 0
    assert ("announced" in result.detail) == ("xff" in written)


def test_a_killed_check_says_so_and_one_that_is_left_open_is_gone(jail: Jailer) -> None:
    async def kill() -> Result:
        async with jail.sandbox.prewarmed.open(ECHO, SMALL) as child:
            return await child.kill()

    async def leave() -> None:
        async with jail.sandbox.prewarmed.open(ECHO, SMALL):
            raise KeyError

    assert jail.wait(kill()).outcome is Outcome.KILLED
    with pytest.raises(KeyError):
        jail.wait(leave())
    nothing_left(jail)


def test_checks_that_are_killed_as_they_take_their_job_are_all_reported(jail: Jailer) -> None:
    """Many of them never read it."""

    async def kill() -> Outcome:
        async with jail.sandbox.prewarmed.open(ECHO, SMALL) as child:
            return (await child.kill()).outcome

    async def all_of_them() -> list[Outcome]:
        async with asyncio.timeout(120):
            return [
                outcome for _ in range(10) for outcome in await asyncio.gather(*(kill() for _ in range(4)))
            ]

    assert jail.wait(all_of_them()) == [Outcome.KILLED] * 40
    nothing_left(jail)


def test_a_check_without_a_channel_has_none(jail: Jailer) -> None:
    async def run() -> Result:
        async with jail.sandbox.prewarmed.open(Check("import os; os.write(3, b'x')"), SMALL) as child:
            with pytest.raises(ValueError, match="without a channel"):
                await child.receive()
            return await child.finish()

    assert b"Bad file descriptor" in jail.wait(run()).stderr


def test_a_receive_that_is_cancelled_loses_nothing() -> None:
    async def run() -> None:
        channel = Channel()
        theirs = socket.socket(fileno=os.dup(channel.descriptor))
        channel.passed()
        frame = (5).to_bytes(4, "big") + b"whole"
        for part in (frame[:2], frame[2:6]):
            theirs.sendall(part)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(channel.receive(), 0.02)
        theirs.sendall(frame[6:])
        assert await channel.receive() == b"whole"
        theirs.close()
        assert await channel.receive() is None
        channel.close()

    asyncio.run(run())


def test_a_receive_ends_when_the_channel_is_closed_here() -> None:
    async def run() -> None:
        channel = Channel()
        waiting = asyncio.ensure_future(channel.receive())
        await asyncio.sleep(0)
        channel.close()
        assert await waiting is None

    asyncio.run(run())


def test_frames_over_the_limit_are_refused_both_ways() -> None:
    async def run() -> None:
        channel = Channel(most=8)
        with pytest.raises(ValueError, match="9 bytes"):
            await channel.send(b"x" * 9)
        theirs = socket.socket(fileno=os.dup(channel.descriptor))
        theirs.sendall((9).to_bytes(4, "big") + b"x" * 9)
        assert await channel.receive() is None and "9 bytes" in channel.problem
        theirs.close()
        channel.close()

    asyncio.run(run())
