"""Frames to and from a check: four bytes of length, big-endian, then the bytes.

Invariant: a check can make us hold one frame of bounded size and nothing else; whatever else it writes closes the
channel. Frames are bytes: what they mean is for the caller, who must not believe them.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket

from shared.sandbox.prewarmed.guest import HEADER

MOST = 8 << 20
"""Bytes of one frame."""
_PIECE = 1 << 16


class Channel:
    """`problem` says why the channel is unusable; empty while it works and after a plain end."""

    def __init__(self, most: int = MOST) -> None:
        self._loop = asyncio.get_running_loop()
        self._ours, self._theirs = socket.socketpair()
        self._ours.setblocking(False)
        self._most = most
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
        try:
            await self._loop.sock_sendall(self._ours, len(frame).to_bytes(HEADER, "big") + frame)
        except OSError:
            return False
        return True

    async def receive(self) -> bytes | None:
        """The next frame; None once the check has closed its end, has ended, or sent what is no frame."""
        if self.problem:
            return None
        header = await self._exactly(HEADER)
        if header is None:
            return None
        size = int.from_bytes(header, "big")
        if size > self._most:
            self.problem = f"announced a frame of {size} bytes; {self._most} are allowed"
            return None
        return await self._exactly(size)

    def finish(self) -> None:
        """No more frames go; the check reads an end."""
        with contextlib.suppress(OSError):
            self._ours.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._theirs.close()
        self._ours.close()

    async def _exactly(self, count: int) -> bytes | None:
        found = bytearray()
        while len(found) < count:
            try:
                piece = await self._loop.sock_recv(self._ours, min(_PIECE, count - len(found)))
            except OSError:
                return None
            if not piece:
                return None
            found += piece
        return bytes(found)
