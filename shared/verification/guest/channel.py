"""Frames on the descriptor that connects a jail to us.

Invariant: a frame is written whole or not at all as far as other threads of this process can see. What closes, or
breaks the framing, ends the conversation: `Closed`.
"""

from __future__ import annotations

import os
import struct
import threading

DESCRIPTOR = 3
HEAD = struct.Struct(">I")
"""Four bytes of length, big-endian, before each frame."""
MAX_FRAME = 8 << 20


class Closed(Exception):
    """The other side is gone."""


class Channel:
    """A kind of one byte and a payload, each way."""

    def __init__(self, descriptor: int = DESCRIPTOR) -> None:
        self._descriptor = descriptor
        self._lock = threading.RLock()

    def send(self, kind: bytes, payload: bytes = b"") -> None:
        """Raises `Closed`."""
        data = memoryview(HEAD.pack(1 + len(payload)) + kind + payload)
        with self._lock:
            try:
                while data:
                    data = data[os.write(self._descriptor, data) :]
            except OSError as error:
                raise Closed("the channel is closed") from error

    def receive(self) -> tuple[bytes, bytes]:
        """Raises `Closed`."""
        (length,) = HEAD.unpack(self._exactly(HEAD.size))
        if not 1 <= length <= MAX_FRAME:
            raise Closed(f"a frame of {length} bytes")
        frame = self._exactly(length)
        return frame[:1], frame[1:]

    def _exactly(self, count: int) -> bytes:
        parts = []
        while count:
            try:
                part = os.read(self._descriptor, min(count, 1 << 20))
            except OSError as error:
                raise Closed("the channel is broken") from error
            if not part:
                raise Closed("the channel is closed")
            parts.append(part)
            count -= len(part)
        return b"".join(parts)
