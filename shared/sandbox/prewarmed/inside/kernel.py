"""System calls and messages of the fork server and its children.

Invariant: no call fails silently, and a message to somebody who is gone is no failure.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # not `signal`: its enums cost a child a dozen pages
import array
import contextlib
import ctypes
import json
import os
import resource
import socket
import struct

MAX_MESSAGE = 1 << 16
MAX_DESCRIPTORS = 16
MOST_DESCRIPTORS = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
"""Open at once. Where there is no close_range(2), so many are closed one by one."""
PLACES = (b"/tmp", b"/dev/shm", b"/work")
"""What a check may write; the last one is where it starts."""

LIBC = ctypes.CDLL(None, use_errno=True)
# Found once, here: what a child looks up for itself it copies for itself.
unshare, setns, prctl, call_mount, signalfd = LIBC.unshare, LIBC.setns, LIBC.prctl, LIBC.mount, LIBC.signalfd
sigaction = LIBC.sigaction
NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWPID, NEWNET = (
    0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x20000000, 0x40000000,
)  # fmt: skip
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REC, MS_PRIVATE = 1, 2, 4, 8, 1 << 14, 1 << 18
PR_SET_DUMPABLE, PR_SET_NAME, PR_SET_SECCOMP, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 4, 15, 22, 24, 38

CHILD_ENDED = (ctypes.c_ulong * 16)(1 << (_signal.SIGCHLD - 1))
"""A `sigset_t` of it alone."""
_ENDS_ALONE = struct.pack("@P128xi4xP", 0, 1, 0)
"""glibc's `struct sigaction`: the default, with SA_NOCLDSTOP."""

fork = ctypes.PyDLL(None).fork
"""Without Python's own steps around it, with the interpreter's lock held: there is one thread, so nothing needs to be
put in order. With `os.fork`, which runs those of `threading`, a fork and its end took twice the CPU time (1.5 ms against
0.7). Random state is seeded anew in `runner.reseed`."""


class Filter(ctypes.Structure):
    """`struct sock_fprog` of linux/filter.h."""

    _fields_ = (("count", ctypes.c_ushort), ("code", ctypes.c_char_p))


def check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def hear_of_ends_alone() -> None:
    """SIGCHLD for children that end, not for those that are stopped and go on: that costs whoever does it a
    microsecond, and kept this process at a quarter of a core which nobody counts."""
    check(sigaction(_signal.SIGCHLD, _ENDS_ALONE, None), "hear of ends alone")


def mount(kind: bytes, target: bytes, flags: int, data: bytes) -> None:
    if call_mount(kind, target, kind, ctypes.c_ulong(flags), data) < 0:
        check(-1, f"mount {kind!r} on {target!r}")


def receive(peer: socket.socket) -> tuple[bytes, list[int]]:
    """One message and its descriptors; empty when the other side is gone."""
    body, ancillary, _, _ = peer.recvmsg(
        MAX_MESSAGE, socket.CMSG_SPACE(4 * MAX_DESCRIPTORS), socket.MSG_CMSG_CLOEXEC
    )
    found = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            found.frombytes(data[: len(data) - len(data) % 4])
    return body, list(found)


def tell(peer: socket.socket, body: bytes) -> None:
    """Nobody may be there any more."""
    with contextlib.suppress(ConnectionError):
        peer.send(body)


def tell_error(peer: socket.socket, error: BaseException) -> None:
    tell(peer, json.dumps({"error": f"{type(error).__name__}: {error}"}).encode())


def close_all_but(*kept: int) -> None:
    """Of the descriptors above 2."""
    first = 3
    for number in sorted(kept):
        os.closerange(first, number)
        first = number + 1
    os.closerange(first, MOST_DESCRIPTORS)
