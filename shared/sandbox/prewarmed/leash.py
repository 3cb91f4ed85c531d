"""Our end of the socket that holds one check's process 1.

Invariant: a leash has one report or one fault, never both, never neither, and either means that no process of the
check is left. When it is let go, or when we are gone, so are they.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import json
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from shared.sandbox.cgroups.none import Look
from shared.sandbox.faults import SandboxFault

PIECE = 1 << 15
_MESSAGE = 1 << 16


@dataclass(frozen=True, slots=True)
class Report:
    """What process 1 saw at the end. `status` is the runner's wait status; `left` counts processes besides it."""

    status: int
    left: int
    full: str
    """The place that has no byte or no inode left, or holds a file at its limit; empty where none does."""
    cpu_s: float


class Leash:
    """Made with its other end, which is passed on and closed. `on_look` gets each look and the bytes in tmpfs.
    Raises `SandboxFault` where there are no descriptors left.

    `ready`: a job may be given. `report`: the end. Where process 1 ended without one, `lost` says so once it is known
    that nothing of it is left, for its end of the socket closes earlier than that.
    """

    def __init__(self, on_look: Callable[[Look, int], None]) -> None:
        self._on_look = on_look
        self._loop = asyncio.get_running_loop()
        try:
            self._ours, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError as error:
            raise SandboxFault(
                f"no socket for a check: {error.strerror}; raise the limit of open files"
            ) from error
        self._ours.setblocking(False)
        self.ready: asyncio.Future[None] = self._loop.create_future()
        self.report: asyncio.Future[Report] = self._loop.create_future()
        self._reason = "process 1 of a check ended without a word"
        self._loop.add_reader(self._ours, self._receive)
        self.alive = True
        """Process 1 has not let go of its end."""

    @property
    def descriptor(self) -> int:
        """Of the other end, until `passed`."""
        return self._theirs.fileno()

    def passed(self) -> None:
        self._theirs.close()

    async def give(
        self, arguments: Sequence[str], source: bytes, cpu_s: int, descriptors: Sequence[int]
    ) -> None:
        """The job: `sys.argv`, a source and the descriptors that are 0, 1, 2 … in the check. Raises `SandboxFault` where
        the kernel does not pass them. A check that has died meanwhile is
        no error here: its report says so."""
        job = json.dumps({"source": len(source), "cpu_s": cpu_s, "arguments": arguments}).encode()
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
        try:
            self._ours.sendmsg([job], rights)
            for start in range(0, len(source), PIECE):
                await self._loop.sock_sendall(self._ours, source[start : start + PIECE])
        except ConnectionError:
            return
        except OSError as error:
            raise SandboxFault(f"a check cannot be given its job: {error.strerror}") from error

    def let_go(self) -> None:
        """All processes of the check end; the report still comes."""
        with contextlib.suppress(OSError):
            self._ours.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._theirs.close()
        if self._ours.fileno() >= 0:
            self._loop.remove_reader(self._ours)
            self._ours.close()
        self._refuse(self.ready, "the leash was closed")
        self._refuse(self.report, "the leash was closed")

    def _receive(self) -> None:
        try:
            body = self._next()
        except BlockingIOError:
            return
        if body:
            self._take(json.loads(body))
            return
        self._loop.remove_reader(self._ours)
        self.alive = False

    def _next(self) -> bytes:
        """The next message, empty at the end. Raises `BlockingIOError`.

        A check that ended before it read its whole job resets the connection, and on a socket of messages Linux tells
        that, once, before it hands out what it holds: the report still lies behind the error.
        """
        with contextlib.suppress(ConnectionError):
            return self._ours.recv(_MESSAGE)
        return self._ours.recv(_MESSAGE)

    def _take(self, message: dict[str, Any]) -> None:
        if "error" in message:
            self._reason = f"a check could not be prepared: {message['error']}"
            self._refuse(self.ready, self._reason)
        elif "ready" in message:
            if not self.ready.done():
                self.ready.set_result(None)
        elif "anon" in message:
            in_tmpfs = int(message.pop("in_tmpfs"))
            self._on_look(Look(**message), in_tmpfs)
        elif not self.report.done():
            self.report.set_result(Report(**message))
            if not self.ready.done():
                self._refuse(self.ready, "a prepared check ended before its job came")

    def lost(self, reason: str = "") -> None:
        """Nothing is left of the check. Its report may still lie in the socket: then this is no fault."""
        if self._ours.fileno() >= 0:
            self._loop.remove_reader(self._ours)
            while not self.report.done():
                try:
                    body = self._next()
                except OSError:
                    break
                if not body:
                    break
                self._take(json.loads(body))
        self._refuse(self.ready, reason or self._reason)
        self._refuse(self.report, reason or self._reason)

    @staticmethod
    def _refuse(future: asyncio.Future[Any], reason: str) -> None:
        if not future.done():
            future.set_exception(SandboxFault(reason))
            future.exception()  # Seen, whether or not anybody waits for it.
