"""Inside a check: whole messages over its channel. Importable there as `temper_channel`.

Invariant: a frame is read whole or not at all. Standard library only; nothing here is trusted by the other side.
"""

from __future__ import annotations

import os

CHANNEL = 3
HEADER = 4
"""Bytes of the length before a frame, big-endian."""


def read() -> bytes | None:
    """The next frame; None once the other side has finished."""
    header = _exactly(HEADER)
    return None if header is None else _exactly(int.from_bytes(header, "big"))


def write(frame: bytes) -> None:
    """Raises `BrokenPipeError` when nobody reads any more."""
    rest = memoryview(len(frame).to_bytes(HEADER, "big") + frame)
    while rest:
        rest = rest[os.write(CHANNEL, rest) :]


def _exactly(count: int) -> bytes | None:
    found = bytearray()
    while len(found) < count:
        piece = os.read(CHANNEL, min(count - len(found), 1 << 16))
        if not piece:
            return None
        found += piece
    return bytes(found)
