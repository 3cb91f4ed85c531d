"""Reading what a program prints, and feeding what it reads, at the same time.

Invariant: a stream is read as long as it is open, whatever the others do, so no program waits for us; what is kept
of it never passes its cap, so a flood costs us one chunk.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable

CHUNK = 1 << 16
"""A pipe's default size: one read empties it."""
OVER = 4
"""A stream may be this many times its cap long before the run is ended."""
TURNS = 8
"""Chunks read in one turn of the loop: a flood must not starve everything else."""


class Drain:
    """Reads one pipe to its end. `kept` holds the first `cap` bytes (with `tail`, the last ones), `seen` counts all.

    `on_over` is called once, when `OVER` times the cap has been passed; reading goes on until `close`.
    """

    def __init__(self, descriptor: int, cap: int, on_over: Callable[[], None], *, tail: bool = False) -> None:
        self._descriptor = descriptor
        self._cap = cap
        self._on_over = on_over
        self._tail = tail
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        self.kept = bytearray()
        self.seen = 0
        self.over = False
        os.set_blocking(descriptor, False)
        self._loop.add_reader(descriptor, self._read)

    @property
    def truncated(self) -> bool:
        return self.seen > len(self.kept)

    async def wait(self) -> None:
        """Returns once every writer has closed its end."""
        await self._ended.wait()

    def finish(self) -> None:
        """What is still in the pipe, without waiting; then closed."""
        while not self._ended.is_set() and (self._tail or not self.over) and self._take():
            pass
        self.close()

    def close(self) -> None:
        if self._descriptor >= 0:
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1
        self._ended.set()

    def _read(self) -> None:
        for _ in range(TURNS):
            if self._descriptor < 0 or not self._take():
                return

    def _take(self) -> bool:
        """False when there is nothing more now."""
        try:
            chunk = os.read(self._descriptor, CHUNK)
        except BlockingIOError:
            return False
        if not chunk:
            self.close()
            return False
        self.seen += len(chunk)
        room = self._cap - len(self.kept)
        if self._tail:
            self.kept += chunk
            del self.kept[: -self._cap]
        elif room > 0:
            self.kept += chunk[:room]
        if not self._tail and not self.over and self.seen > OVER * self._cap:
            self.over = True
            self._on_over()
        return True


class Feed:
    """Writes `content` into a pipe and closes it; a reader that goes away early is no fault of anybody's."""

    def __init__(self, descriptor: int, content: bytes) -> None:
        self._descriptor = descriptor
        self._rest = memoryview(content)
        self._loop = asyncio.get_running_loop()
        os.set_blocking(descriptor, False)
        self._write()
        if self._descriptor >= 0:
            self._loop.add_writer(descriptor, self._write)

    def close(self) -> None:
        if self._descriptor >= 0:
            with contextlib.suppress(ValueError):
                self._loop.remove_writer(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1

    def _write(self) -> None:
        try:
            while self._rest:
                self._rest = self._rest[os.write(self._descriptor, self._rest[:CHUNK]) :]
        except BlockingIOError:
            return
        except BrokenPipeError:
            pass
        self.close()
