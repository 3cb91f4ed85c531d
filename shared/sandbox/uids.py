"""Outside user numbers of jails.

Invariant: a number belongs to one jail at a time on the whole machine: it is held by a lock on its byte of one file,
which the kernel drops when its holder ends, however it ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import struct
from pathlib import Path

from shared.sandbox.faults import SandboxFault

_GONE_TRIES, _GONE_PAUSE_S = 200, 0.01
_FLOCK = struct.Struct("hhqqi4x")
"""`struct flock` of 64-bit Linux: type, whence, start, length, pid."""


class Uids:
    """`count` numbers from `first`, shared with every other process that uses the same state folder."""

    def __init__(self, folder: Path, first: int, count: int) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o711)
        self._first = first
        self._count = count
        self._next = 0
        self._held: set[int] = set()
        self._file = os.open(folder / "uids.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def take(self) -> int:
        """A number nobody holds, the longest unused first. Raises `SandboxFault` when all are in use."""
        for step in range(self._count):
            place = (self._next + step) % self._count
            if place not in self._held and self._lock(place, fcntl.F_WRLCK):
                self._held.add(place)
                self._next = (place + 1) % self._count
                return self._first + place
        raise SandboxFault(f"all {self._count} uids of jails are in use: raise sandbox.uids")

    def take_block(self, count: int) -> int:
        """The first of `count` consecutive numbers that nobody holds; each is given back by itself.

        Raises `SandboxFault` when there is no such row.
        """
        start = 0
        while start + count <= self._count:
            taken: list[int] = []
            for place in range(start, start + count):
                if place in self._held or not self._lock(place, fcntl.F_WRLCK):
                    break
                self._held.add(place)
                taken.append(place)
            if len(taken) == count:
                return self._first + start
            for place in taken:
                self.give_back(self._first + place)
            start += len(taken) + 1
        raise SandboxFault(f"no {count} uids of jails in a row are free of {self._count}: raise sandbox.uids")

    def give_back(self, uid: int) -> None:
        """Once nothing of it runs any more."""
        place = uid - self._first
        if place in self._held:
            self._held.discard(place)
            self._lock(place, fcntl.F_UNLCK)

    def close(self) -> None:
        self._held.clear()
        os.close(self._file)

    def _lock(self, place: int, kind: int) -> bool:
        # Of the open file, not of the process: two sandboxes in one process do not share numbers either.
        wanted = _FLOCK.pack(kind, os.SEEK_SET, place, 1, 0)
        try:
            fcntl.fcntl(self._file, fcntl.F_OFD_SETLK, wanted)
        except (BlockingIOError, PermissionError):
            return False
        return True


async def nobody_of(uid: int) -> None:
    """Returns once this user has no process any more. Raises `SandboxFault` where it keeps one."""
    for _ in range(_GONE_TRIES):
        if not any(_owner(path) == uid for path in Path("/proc").iterdir() if path.name.isdigit()):
            return
        await asyncio.sleep(_GONE_PAUSE_S)
    raise SandboxFault(f"processes of uid {uid} outlive their keeper: see `ps -u {uid}`")


def _owner(path: Path) -> int:
    with contextlib.suppress(OSError):
        return path.stat().st_uid
    return -1
