"""Frames to and from a check: four bytes of length, big-endian, then the bytes.

Invariant: a check can make us hold one frame of bounded size and nothing else; whatever else it writes closes the
channel. Frames are bytes: what they mean is for the caller, who must not believe them.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket

from shared.sandbox.faults import SandboxFault
from shared.sandbox.prewarmed.guest import HEADER

MOST = 8 << 20
"""Bytes of one frame."""
_PIECE = 1 << 16


class Channel:
    """`problem` says why the channel is unusable; empty while it works and after a plain end.

    Raises `SandboxFault` where there are no descriptors left.
    """

    def __init__(self, most: int = MOST) -> None:
        self._loop = asyncio.get_running_loop()
        try:
            self._ours, self._theirs = socket.socketpair()
        except OSError as error:
            raise SandboxFault(
                f"no channel for a check: {error.strerror}; raise the limit of open files"
            ) from error
        self._ours.setblocking(False)
        self._most = most
        self._buffer = bytearray()
        self._broken = False
        self._waiting: asyncio.Future[None] | None = None
        self.problem = ""

    @property
    def descriptor(self) -> int:
        """Of the check's end, until `passed`."""
        return self._theirs.fileno()

    def passed(self) -> None:
        self._theirs.close()

    async def send(self, frame: bytes) -> bool:
        """False once nobody reads any more. Raises `ValueError` for a frame over the limit."""
        if len(frame) > self._most:
            raise ValueError(f"a frame of {len(frame)} bytes: a channel carries {self._most}")
        if self._broken:
            return False
        # A frame that was cut short by a cancelled call cannot be taken up again.
        self._broken = True
        try:
            await self._loop.sock_sendall(self._ours, len(frame).to_bytes(HEADER, "big") + frame)
        except OSError:
            return False
        self._broken = False
        return True

    async def receive(self) -> bytes | None:
        """The next frame; None once the check has closed its end, has ended, or sent what is no frame. A call that is
        cancelled loses nothing."""
        if self.problem or not await self._holds(HEADER):
            return None
        size = int.from_bytes(self._buffer[:HEADER], "big")
        if size > self._most:
            self.problem = f"announced a frame of {size} bytes; {self._most} are allowed"
            return None
        if not await self._holds(HEADER + size):
            return None
        frame = bytes(self._buffer[HEADER : HEADER + size])
        del self._buffer[: HEADER + size]
        return frame

    def finish(self) -> None:
        """No more frames go; the check reads an end."""
        with contextlib.suppress(OSError):
            self._ours.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Whoever waits for a frame gets None."""
        self._theirs.close()
        if self._ours.fileno() >= 0:
            self._loop.remove_reader(self._ours)
            self._ours.close()
        if self._waiting is not None:
            _set(self._waiting)

    async def _holds(self, count: int) -> bool:
        """Reads until the buffer has that many bytes; never past them, so a check fills one frame of ours at most."""
        while len(self._buffer) < count:
            try:
                piece = self._ours.recv(min(_PIECE, count - len(self._buffer)))
            except BlockingIOError:
                await self._readable()
                continue
            except OSError:
                return False
            if not piece:
                return False
            self._buffer += piece
        return True

    async def _readable(self) -> None:
        ready: asyncio.Future[None] = self._loop.create_future()
        self._waiting = ready
        self._loop.add_reader(self._ours, _set, ready)
        try:
            await ready
        finally:
            self._waiting = None
            if self._ours.fileno() >= 0:
                self._loop.remove_reader(self._ours)


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
