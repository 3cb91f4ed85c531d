"""One fork server in its jail, seen from outside.

Invariant: it gets nothing but settings and requests to fork, so no check's source or data is ever in it; when it is
lost, whoever waits for it is told.
"""

from __future__ import annotations

import array
import asyncio
import base64
import functools
import json
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from shared.sandbox.cgroups.base import Group
from shared.sandbox.cgroups.none import LOOK_S, NoGroup, address_space_mb
from shared.sandbox.faults import SandboxFault
from shared.sandbox.keeper.client import KeptProcess
from shared.sandbox.limits import MIB, Limits
from shared.sandbox.nsjail import INSIDE_UID, Jail, command_line
from shared.sandbox.prewarmed.host import Host
from shared.sandbox.prewarmed.leash import Leash
from shared.sandbox.seccomp import bpf
from shared.sandbox.streams import Drain

_START_S, _END_S = 30.0, 5.0
_MESSAGE = 1 << 16
_BOOT = """
import json, socket, sys, types
peer = socket.socket(fileno=3)
for name, text in json.loads(peer.recv(1 << 18)):
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(text, f"<{name}>", "exec", dont_inherit=True), module.__dict__)
peer.detach()
sys.exit(module.main())
"""
_INSIDE = ("kernel", "runner", "init", "zygote")
"""Modules of `inside` in the order in which they import each other; the last one is started. Never imported here."""
_ARGV = ("/python/bin/python3", "-s", "-S", "-P", "-X", "utf8", "-c", _BOOT)
"""Not `-I`: it would ignore PYTHONHASHSEED. The environment is ours anyway."""
_AT_START = {"PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1"}
"""One order of sets in all checks; and a server with threads could not be forked."""
_UNBOUNDED = Limits(
    wall_s=1e9, cpu_s=1e9, processes=1 << 16, open_files=1 << 12, file_mb=1 << 20
)  # fmt: skip
"""Of the server itself, which runs no program; its children lower theirs."""


@functools.lru_cache(maxsize=64)
def shape_of(limits: Limits) -> Limits:
    """What of them is settled before a check's source is known; the rest, watched by us, is the same for all."""
    return replace(limits, wall_s=1.0, cpu_s=1.0, output_kb=1)


class ForkServer:
    """`users` checks at once, each as an outside user of its own; the server is one more."""

    def __init__(self, sandbox: Host, root: str, users: int, imports: Sequence[str]) -> None:
        # The keeper of now: after it is lost this server is lost too, and the next one has the next keeper.
        self._keeper = sandbox.keeper
        self._nsjail = sandbox.nsjail
        self._root = root
        self._uids = sandbox.uids
        self._users = users
        self._uid = self._uids.take_block(users + 1)
        self._held = range(self._uid, self._uid + users + 1)
        self._imports = tuple(imports)
        self._control: socket.socket | None = None
        self._process: KeptProcess | None = None
        self._log: Drain | None = None
        self._next = 0
        self._leashes: dict[int, Leash] = {}
        self._burial: asyncio.Future[None] | None = None
        self.resident_kb = 0
        self.forks = 0

    async def start(self, environment: Mapping[str, str]) -> None:
        """Raises `SandboxFault` where it does not come up; the message ends with what it printed."""
        theirs: list[int] = []
        try:
            theirs = self._open()
            self._process = await self._keeper.spawn(
                command_line(self._nsjail, self._jail(environment), _ARGV), {}, dict(enumerate(theirs))
            )
            while theirs:
                os.close(theirs.pop())
            assert self._control is not None
            answer = await self._greet(self._control)
        except OSError as error:
            await self.close()
            raise SandboxFault(f"no fork server: {error}") from error
        except BaseException:
            await self.close()
            raise
        finally:
            for descriptor in theirs:
                os.close(descriptor)
        self.resident_kb = answer["resident_kb"]
        asyncio.get_running_loop().add_reader(self._control, self._receive)

    def _open(self) -> list[int]:
        """What the server has as 0, 1, 2 and 3. Raises `OSError`."""
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 19)
        self._control.setblocking(False)
        opened = [theirs.detach()]
        try:
            heard, told = os.pipe2(os.O_CLOEXEC)
            self._log = Drain(heard, 1 << 14, lambda: None, tail=True)
            opened = [told, *opened]
            for _ in range(2):
                opened = [os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC), *opened]
        except OSError:
            for descriptor in opened:
                os.close(descriptor)
            raise
        return opened

    async def _greet(self, control: socket.socket) -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        settings = {
            "path": ["/python-packages"],
            "imports": self._imports,
            "forget": list(_AT_START),
            "filter": base64.b64encode(bpf()).decode(),
        }
        try:
            async with asyncio.timeout(_START_S):
                await loop.sock_sendall(control, json.dumps(_texts()).encode())
                await loop.sock_sendall(control, json.dumps(settings).encode())
                body = await loop.sock_recv(control, _MESSAGE)
        except (TimeoutError, OSError) as error:
            raise SandboxFault(
                f"no fork server: {error or 'it was not ready in time'}{self._said()}"
            ) from error
        if not body:
            raise SandboxFault(f"no fork server: it ended at once{self._said()}")
        answer: dict[str, Any] = json.loads(body)
        if "error" in answer:
            raise SandboxFault(f"no fork server: {answer['error']}")
        return answer

    def _said(self) -> str:
        if self._log is None:
            return ""
        self._log.finish()
        return ": " + bytes(self._log.kept[-2000:]).decode(errors="backslashreplace").strip()

    def _jail(self, environment: Mapping[str, str]) -> Jail:
        return Jail(
            root=self._root, uid=self._uid, limits=_UNBOUNDED, inside_uid=0, more_users=self._users,
            keep_capabilities=True, descriptors=(3,), cwd="/", log_descriptor=2,
            environment={**environment, **_AT_START},
        )  # fmt: skip

    def fork(self, limits: Limits, place: int, group: Group) -> Leash:
        """A new check that makes itself ready, as user number `place`, inside `group`. Raises `SandboxFault` when the
        server is gone or does not keep up."""
        weak = group if isinstance(group, NoGroup) else None
        leash = Leash(weak.take if weak else lambda *_: None)
        number, self._next = self._next, self._next + 1
        # The user's own limit is a little above the group's, which is met first and counted; of one process there is
        # no group, since a group has room for a helper.
        above = 0 if weak or limits.processes == 1 else 2
        request = {
            "id": number, "user": INSIDE_UID + place, "processes": limits.processes + above,
            "disk_bytes": limits.disk_mb * MIB, "inodes": limits.inodes, "file_bytes": limits.file_mb * MIB,
            "open_files": min(limits.open_files, _UNBOUNDED.open_files),
            "address_space": address_space_mb(limits) * MIB if weak else 0,
            "look_s": LOOK_S if weak else 0.0,
        }  # fmt: skip
        rights = array.array("i", [leash.descriptor, *group.joins])
        try:
            if self._control is None:
                raise SandboxFault("the fork server is gone")
            self._control.sendmsg(
                [json.dumps(request).encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)]
            )
        except OSError as error:
            leash.close()
            raise SandboxFault(f"the fork server takes no request: {error}") from error
        except SandboxFault:
            leash.close()
            raise
        leash.passed()
        self.forks += 1
        self._leashes[number] = leash
        leash.report.add_done_callback(lambda _: self._leashes.pop(number, None))
        return leash

    def outside(self, place: int) -> int:
        """The outside user of check number `place`."""
        return self._uid + 1 + place

    @property
    def alive(self) -> bool:
        return self._control is not None

    async def close(self) -> None:
        """Returns once it and all its checks are gone."""
        self._let_go()
        await self._bury("the fork server was closed")
        if self._log is not None:
            self._log.close()
        held, self._held = self._held, range(0)
        for uid in held:
            self._uids.give_back(uid)

    def _receive(self) -> None:
        assert self._control is not None
        try:
            body = self._control.recv(_MESSAGE)
        except BlockingIOError:
            return
        except OSError:
            body = b""
        if body:
            leash = self._leashes.get(json.loads(body)["ended"])
            if leash is not None:
                leash.lost()
            return
        self._let_go()
        self._burial = asyncio.ensure_future(self._bury(f"the fork server is gone{self._said()}"))

    def _let_go(self) -> None:
        """It ends when its socket closes, and, being process 1 of its pid namespace, takes all its checks along."""
        if self._control is not None:
            asyncio.get_running_loop().remove_reader(self._control)
            self._control.close()
            self._control = None

    async def _bury(self, reason: str) -> None:
        if self._process is not None:
            try:
                await asyncio.wait_for(self._process.wait(), _END_S)
            except TimeoutError:
                await self._process.signal()
                await self._process.wait()
            except SandboxFault:
                pass  # The keeper is gone, and with it everything below it.
        for leash in list(self._leashes.values()):
            leash.lost(reason)


def _texts() -> list[tuple[str, str]]:
    """Modules by the names under which they are known in the jail."""
    here = Path(__file__).parent
    files = {"temper_channel": here / "guest.py"}
    files |= {f"{__package__}.inside.{name}": here / "inside" / f"{name}.py" for name in _INSIDE}
    return [(name, file.read_text(encoding="utf-8")) for name, file in files.items()]
