"""The few kernel calls of the keeper that Python has no name for.

Invariant: a call that fails raises `OSError` with the kernel's own number.
"""

from __future__ import annotations

import array
import ctypes
import os
import socket
from collections.abc import Iterable

LIBC = ctypes.CDLL(None, use_errno=True)
PR_SET_PDEATHSIG = 1
CLONE_NEWNS, CLONE_NEWPID = 0x00020000, 0x20000000
MS_REC, MS_PRIVATE, MS_BIND, MS_NOATIME = 0x4000, 1 << 18, 0x1000, 1 << 10
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MNT_DETACH = 2


def check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def mount(source: str, target: str, kind: str, flags: int, data: str) -> None:
    fields = [text.encode() if text else None for text in (source, target, kind)]
    options = data.encode() if data else None
    check(LIBC.mount(*fields, ctypes.c_ulong(flags), options), f"mount {kind or source} on {target}")


def detach(target: str) -> None:
    """With all that is mounted below it."""
    check(LIBC.umount2(target.encode(), MNT_DETACH), f"unmount {target}")


def unshare(flags: int, what: str) -> None:
    check(LIBC.unshare(flags), what)


def enter(descriptor: int, kind: int, what: str) -> None:
    """Into the namespace behind a descriptor (setns)."""
    check(LIBC.setns(descriptor, kind), what)


def passed_descriptors(ancillary: Iterable[tuple[int, int, bytes]]) -> list[int]:
    """What came beside a message (SCM_RIGHTS, unix(7)); whoever takes them closes them."""
    found = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            found.frombytes(data[: len(data) - len(data) % 4])
    return list(found)
