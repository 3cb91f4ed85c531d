"""Work with files in a thread: waited for once it has begun, and not before."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from shared.sandbox.threads import in_thread


def test_what_a_thread_does_is_waited_for_and_what_none_has_begun_is_not_done() -> None:
    begun, may_go, done = threading.Event(), threading.Event(), []

    def first() -> None:
        begun.set()
        may_go.wait(30.0)
        done.append("first")

    async def body() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        running = asyncio.ensure_future(in_thread(first))
        while not begun.is_set():
            await asyncio.sleep(0.001)
        waiting = asyncio.ensure_future(in_thread(lambda: done.append("second")))
        await asyncio.sleep(0)
        for work in (running, waiting, running):
            work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert not running.done() and done == []
        may_go.set()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert await in_thread(lambda: 7) == 7
        assert done == ["first"]

    try:
        asyncio.run(body())
    finally:
        may_go.set()


def test_what_it_raises_is_told() -> None:
    def broken() -> None:
        raise ValueError("no such luck")

    with pytest.raises(ValueError, match="no such luck"):
        asyncio.run(in_thread(broken))
