"""Our side of the keeper.

Invariant: one keeper, one client, one event loop. When the keeper is gone every request and every running process
ends with a `SandboxFault`; nothing waits for an answer that cannot come.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import shared
from shared.sandbox.faults import SandboxFault, SandboxUnavailable
from shared.sandbox.keeper import program
from shared.sandbox.keeper.kernel import passed_descriptors
from shared.sandbox.owners import owner_name

_START_S = 20.0
_BUFFER = 1 << 20
_HOME = str(Path(shared.__file__).resolve().parents[1])
_PROGRAM = f"import sys; sys.path.append({_HOME!r}); from shared.sandbox.keeper.program import main; sys.exit(main())"
"""Isolated Python has no import path of its own; the keeper needs its neighbours, all of the standard library's kind."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a spawned process. `cpu_s` is of it and of the children it waited for."""

    status: int
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Init:
    """How a process 1 reports: into which pipe, and how often it looks (0: only at the end). See `keeper/init.py`.

    `needs`: the mounts of runs and sessions that this run is made with, as the keeper sees them; it holds no other.
    """

    report: int
    look_s: float = 0.0
    needs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Space:
    """Of one file system, in bytes and in inodes."""

    size: int
    free: int
    inodes: int
    inodes_free: int

    @property
    def used(self) -> int:
        return self.size - self.free

    @property
    def inodes_used(self) -> int:
        return self.inodes - self.inodes_free

    @property
    def full(self) -> bool:
        return self.free == 0 or self.inodes_free == 0


class KeptProcess:
    """A process under the keeper; `pid` is its number in the keeper's namespace. `door`: the listening socket of its
    own network where one was asked for, else None; whoever takes it closes it."""

    def __init__(
        self, keeper: KeeperClient, pid: int, ended: asyncio.Future[Ended], door: int | None = None
    ) -> None:
        self._keeper = keeper
        self._ended = ended
        self.pid = pid
        self.door = door

    async def wait(self) -> Ended:
        """Raises `SandboxFault` when the keeper is lost first."""
        return await asyncio.shield(self._ended)

    @property
    def running(self) -> bool:
        return not self._ended.done()

    async def signal(self, number: int = signal.SIGKILL) -> None:
        """Harmless once it has ended."""
        if self.running:
            await self._keeper.signal(self.pid, number)


class KeeperClient:
    """Start it, ask it, close it."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._folder = ""
        self._next = 0
        self._answers: dict[int, asyncio.Future[tuple[dict[str, Any], int | None]]] = {}
        self._running: dict[int, asyncio.Future[Ended]] = {}
        self._early: dict[int, Ended] = {}
        self._lost = ""

    @property
    def folder(self) -> str:
        """The keeper's scratch: a tmpfs that only its namespace sees."""
        return self._folder

    @property
    def alive(self) -> bool:
        return self._socket is not None and not self._lost

    @property
    def lost(self) -> str:
        """Why it is gone; empty while it is there, and before."""
        return self._lost

    @property
    def pid(self) -> int:
        """Of the keeper's outer process; 0 when there is none."""
        return self._process.pid if self._process is not None else 0

    async def start(self, state_folder: Path) -> None:
        """Raises `SandboxUnavailable` where this process may not make namespaces."""
        state_folder.mkdir(parents=True, exist_ok=True, mode=0o711)
        self._folder = tempfile.mkdtemp(prefix=f"keeper-{owner_name()}-", dir=state_folder)
        Path(self._folder).chmod(0o711)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)
        with theirs:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-I", "-S", "-c", _PROGRAM, str(theirs.fileno()), self._folder,
                pass_fds=(theirs.fileno(),), stdin=asyncio.subprocess.DEVNULL, env={}, start_new_session=True,
            )  # fmt: skip
        ours.setblocking(False)
        self._socket = ours
        try:
            async with asyncio.timeout(_START_S):
                body = await asyncio.get_running_loop().sock_recv(ours, 1 << 16)
        except TimeoutError as error:
            await self.close()
            raise SandboxFault(f"the keeper was not ready after {_START_S:g} s") from error
        first = json.loads(body) if body else {"error": "it ended at once"}
        if "ready" not in first:
            await self.close()
            raise SandboxUnavailable(
                f"no keeper for the sandbox: {first['error']}; it needs root or CAP_SYS_ADMIN: see `temper sandbox doctor`"
            )
        asyncio.get_running_loop().add_reader(ours, self._receive)

    async def close(self) -> None:
        """Ends the keeper and all below it; returns once they are gone."""
        self._lose("the sandbox was closed")
        if self._process is not None:
            if self._process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    self._process.kill()
            await asyncio.shield(self._process.wait())
            self._process = None
        if self._folder:
            with contextlib.suppress(OSError):
                Path(self._folder).rmdir()
            self._folder = ""

    async def spawn(
        self,
        argv: Sequence[str],
        environment: Mapping[str, str],
        descriptors: Mapping[int, int],
        joins: Sequence[int] = (),
        *,
        init: Init | None = None,
        door: int = 0,
    ) -> KeptProcess:
        """Starts `argv[0]` with our descriptors under its numbers, inside the cgroups whose `cgroup.procs` are open
        in `joins`; with `init`, below a process 1 of its own, which is then what is named, signalled and waited for;
        with `door`, in a network of its own with a listening socket at that port. Raises `SandboxFault` where it
        cannot be started."""
        body: dict[str, Any] = {
            "op": "spawn",
            "argv": list(argv),
            "env": dict(environment),
            "fds": list(descriptors),
            "joins": len(joins),
            "door": door,
        }
        # Covered for this program; not where it needs itself what is in it.
        needed = any(path.startswith("/tmp/") for path in (self._folder, argv[0]))
        body["mounts"] = {
            "scratch": "" if needed else "/tmp",
            "others": [f"{self._folder}/{name}/" for name in ("runs", "sessions")],
            "needs": init.needs if init is not None else (),
        }
        first: list[int] = []
        if init is not None:
            body["init"] = {"look_s": init.look_s}
            first = [init.report]
        answer, passed = await self._ask(body, [*first, *descriptors.values(), *joins])
        pid = answer["pid"]
        ended: asyncio.Future[Ended] = asyncio.get_running_loop().create_future()
        # A short program may have ended before its number was known here.
        early = self._early.pop(pid, None)
        if early is not None:
            ended.set_result(early)
        else:
            self._running[pid] = ended
        return KeptProcess(self, pid, ended, passed)

    async def signal(self, pid: int, number: int) -> None:
        await self._ask({"op": "signal", "pid": pid, "signal": number}, [])

    async def do(self, *steps: Sequence[str | int]) -> None:
        """File system steps, in order, in the keeper's mount namespace (names in `program.STEPS`).

        Raises `SandboxFault` at the first that fails; the earlier ones stay done.
        """
        await self._ask({"op": "do", "steps": [list(step) for step in steps]}, [])

    async def open(self, path: str) -> int:
        """An O_PATH descriptor of a folder as the keeper sees it; the caller closes it."""
        _, descriptor = await self._ask({"op": "open", "path": path}, [])
        if descriptor is None:
            raise SandboxFault(f"the keeper opened {path} and passed nothing")
        return descriptor

    async def space(self, *paths: str) -> list[Space]:
        """What is left of the file systems at these paths, as the keeper sees them."""
        answer, _ = await self._ask({"op": "space", "paths": list(paths)}, [])
        return [
            Space(block * blocks, block * free, inodes, inodes_free)
            for block, blocks, free, inodes, inodes_free in answer["space"]
        ]

    async def _ask(
        self, body: dict[str, Any], descriptors: Sequence[int]
    ) -> tuple[dict[str, Any], int | None]:
        if self._socket is None or self._lost:
            raise SandboxFault(self._lost or "the sandbox is not started")
        number, self._next = self._next, self._next + 1
        answer: asyncio.Future[tuple[dict[str, Any], int | None]] = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        message = json.dumps({"id": number, **body}).encode()
        if len(message) > program.MAX_MESSAGE:
            del self._answers[number]
            raise SandboxFault(f"a request of {len(message)} bytes: the keeper reads {program.MAX_MESSAGE}")
        try:
            await self._write(message, descriptors)
            reply, descriptor = await answer
        except asyncio.CancelledError:
            _close_passed(answer)
            raise
        finally:
            self._answers.pop(number, None)
        if "error" in reply:
            raise SandboxFault(f"the keeper could not {body['op']}: {reply['error']}")
        return reply, descriptor

    async def _write(self, message: bytes, descriptors: Sequence[int]) -> None:
        ancillary = []
        if descriptors:
            ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
        while self._socket is not None:
            try:
                self._socket.sendmsg([message], ancillary)
                return
            except BlockingIOError:
                await asyncio.sleep(0.001)
            except OSError as error:
                self._lose(f"the keeper is gone: {error}")
                break
        raise SandboxFault(self._lost or "the keeper is gone")

    def _receive(self) -> None:
        assert self._socket is not None
        while True:
            try:
                body, ancillary, _, _ = self._socket.recvmsg(
                    1 << 16, socket.CMSG_SPACE(16), socket.MSG_CMSG_CLOEXEC
                )
            except BlockingIOError:
                return
            except OSError as error:
                self._lose(f"the keeper is gone: {error}")
                return
            if not body:
                self._lose("the keeper is gone: its socket closed")
                return
            self._take(json.loads(body), next(iter(passed_descriptors(ancillary)), None))

    def _take(self, message: dict[str, Any], descriptor: int | None) -> None:
        if "exit" in message:
            ended = Ended(message["status"], message["cpu"])
            waiting = self._running.pop(message["exit"], None)
            if waiting is None:
                self._early[message["exit"]] = ended
            elif not waiting.done():
                waiting.set_result(ended)
            return
        answer = self._answers.get(message["id"])
        if answer is not None and not answer.done():
            answer.set_result((message, descriptor))
        elif descriptor is not None:
            os.close(descriptor)

    def _lose(self, reason: str) -> None:
        self._lost = self._lost or reason
        if self._socket is not None:
            with contextlib.suppress(RuntimeError):
                asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None
        waiting: list[asyncio.Future[Any]] = [*self._answers.values(), *self._running.values()]
        for future in waiting:
            if not future.done():
                future.set_exception(SandboxFault(self._lost))
                future.exception()
        self._running.clear()


def _close_passed(answer: asyncio.Future[tuple[dict[str, Any], int | None]]) -> None:
    """It came, and whoever asked was cancelled before it saw it: an open folder keeps its mount."""
    if answer.done() and not answer.cancelled() and answer.exception() is None:
        descriptor = answer.result()[1]
        if descriptor is not None:
            os.close(descriptor)
