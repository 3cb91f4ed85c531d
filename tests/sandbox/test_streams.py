"""Draining and feeding pipes: whatever the sizes, nobody waits for us and we hold no more than the cap."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from shared.sandbox.streams import OVER, Drain, Feed


def through(content: bytes, cap: int, *, tail: bool = False) -> tuple[bytes, int, bool, bool]:
    async def run() -> tuple[bytes, int, bool, bool]:
        reader, writer = os.pipe()
        calls: list[None] = []
        drain = Drain(reader, cap, lambda: calls.append(None), tail=tail)
        Feed(writer, content)
        await drain.wait()
        drain.close()
        assert len(calls) == drain.over
        return bytes(drain.kept), drain.seen, drain.truncated, drain.over

    return asyncio.run(run())


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 400_000), st.integers(1, 100_000))
def test_the_first_bytes_are_kept_and_all_are_counted(size: int, cap: int) -> None:
    content = os.urandom(size)
    kept, seen, truncated, over = through(content, cap)
    assert kept == content[:cap] and seen == size
    assert truncated == (size > cap) and over == (size > OVER * cap)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 400_000), st.integers(1, 100_000))
def test_of_a_log_the_last_bytes_are_kept(size: int, cap: int) -> None:
    content = os.urandom(size)
    kept, seen, _, over = through(content, cap, tail=True)
    assert kept == content[-cap:] and seen == size and not over


def _in_loop(work: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        await work()

    asyncio.run(run())


def test_finish_takes_what_is_there_and_does_not_wait_for_the_writer() -> None:
    async def work() -> None:
        reader, writer = os.pipe()
        drain = Drain(reader, 10, lambda: None)
        os.write(writer, b"x" * 30)
        drain.finish()
        assert (bytes(drain.kept), drain.seen) == (b"x" * 10, 30)
        os.close(writer)

    _in_loop(work)


def test_a_reader_that_leaves_ends_the_feeding() -> None:
    async def work() -> None:
        reader, writer = os.pipe()
        feed = Feed(writer, b"x" * (1 << 20))
        os.close(reader)
        await asyncio.sleep(0)
        feed.close()
        try:
            os.fstat(writer)
        except OSError:
            return
        raise AssertionError("the descriptor is still open")

    _in_loop(work)
