"""Jails of this process.

Invariant: when `run` returns, however it returns, nothing of the run is left: no process, mount, cgroup, file or uid.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from shared.sandbox.binary import find_nsjail
from shared.sandbox.command import Command
from shared.sandbox.faults import SandboxFault
from shared.sandbox.keeper.client import KeeperClient
from shared.sandbox.limits import Limits
from shared.sandbox.nsjail import Jail, command_line
from shared.sandbox.outcome import Outcome, Result, Usage
from shared.sandbox.roots import Roots
from shared.sandbox.sessions.opening import open_session
from shared.sandbox.sessions.session import Session
from shared.sandbox.settings import SandboxSettings
from shared.sandbox.streams import Drain, Feed
from shared.sandbox.uids import Uids

ENVIRONMENT = {
    "PATH": "/python/bin:/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin",
    "PYTHONPATH": "/python-packages",
    "HOME": "/work",
    "LANG": "C.UTF-8",
}


class Sandbox:
    """`async with Sandbox(settings) as sandbox: result = await sandbox.run(Command(("/bin/true",)), Limits())`."""

    def __init__(self, settings: SandboxSettings | None = None) -> None:
        self.settings = settings or SandboxSettings()
        self.keeper = KeeperClient()
        self._nsjail = find_nsjail(self.settings.nsjail)
        self._roots = Roots(self.keeper, self.settings.roots, self.settings.python_packages)
        self._uids: Uids | None = None

    async def start(self) -> None:
        """Raises `SandboxUnavailable` where nothing can be jailed here."""
        folder = Path(self.settings.state_folder)
        await self.keeper.start(folder)
        self._uids = Uids(folder, self.settings.first_uid, self.settings.uids)

    async def close(self) -> None:
        """Ends what still runs."""
        await self.keeper.close()
        if self._uids is not None:
            self._uids.close()
            self._uids = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def run(self, command: Command, limits: Limits | None = None, *, root: str = "default") -> Result:
        """One command in a fresh jail, to its end or to its limits.

        Never raises for what the program did, nor for what we could not do: that is `Outcome.INFRASTRUCTURE`.
        Raises `ConfigError` for a root that is not declared.
        """
        limits = limits or Limits()
        if self._uids is None:
            raise SandboxFault("the sandbox is not started: use it as `async with Sandbox() as sandbox`")
        tree = await self._roots.path(root)
        uid = self._uids.take()
        try:
            return await self._run(command, limits, tree, uid)
        finally:
            self._uids.give_back(uid)

    async def run_at(self, command: Command, limits: Limits, *, root: str, work: str, uid: int) -> Result:
        """As `run`, over a workspace that is already there and belongs to `uid`: a session's command."""
        return await self._run(command, limits, await self._roots.path(root), uid, work)

    async def session(
        self, files: Mapping[str, bytes] | None = None, limits: Limits | None = None, *, root: str = "default"
    ) -> Session:
        """A workspace with these files for many commands; close it, or use it as `async with`.

        `limits` are of each command that brings none; `disk_mb` and `inodes` of the whole workspace with its
        snapshots and forks. Raises `ConfigError` for a root that is not declared, `WorkspaceRefusal` where the files
        do not fit, `SandboxFault` where it cannot be made.
        """
        if self._uids is None:
            raise SandboxFault("the sandbox is not started: use it as `async with Sandbox() as sandbox`")
        await self._roots.path(root)
        uid = self._uids.take()
        return await open_session(
            self,
            self.keeper,
            uid=uid,
            files=files or {},
            limits=limits or Limits(),
            root=root,
            give_back=self._uids.give_back,
        )

    async def _run(self, command: Command, limits: Limits, tree: str, uid: int, work: str = "") -> Result:
        jail = Jail(
            root=tree, uid=uid, limits=limits, work=work, environment={**ENVIRONMENT, **command.environment},
            cwd=command.cwd, log_descriptor=3,
        )  # fmt: skip
        argv = ("/bin/sh", "-c", 'exec "$0" "$@"', *command.argv)
        pipes = [os.pipe2(os.O_CLOEXEC) for _ in range(4)]
        started = time.monotonic()
        ends = {0: pipes[0][0], 1: pipes[1][1], 2: pipes[2][1], 3: pipes[3][1]}
        process = await self.keeper.spawn(command_line(self._nsjail, jail, argv), {}, ends)
        for end in ends.values():
            os.close(end)
        cause: list[Outcome] = []
        over = asyncio.Event()
        streams = [Drain(pipes[n][0], limits.output_kb << 10, over.set) for n in (1, 2)]
        log = Drain(pipes[3][0], 1 << 16, lambda: None)
        feed = Feed(pipes[0][1], command.stdin)
        ended = asyncio.ensure_future(process.wait())
        flooded = asyncio.ensure_future(over.wait())
        try:
            await asyncio.wait([ended, flooded], timeout=limits.wall_s, return_when=asyncio.FIRST_COMPLETED)
            if not ended.done():
                cause.append(Outcome.OUTPUT_LIMIT if over.is_set() else Outcome.WALL_LIMIT)
        finally:
            flooded.cancel()
            with contextlib.suppress(SandboxFault):
                await process.signal(signal.SIGKILL)
            for stream in (*streams, log):
                stream.finish()
            feed.close()
        wall = time.monotonic() - started
        try:
            end = await ended
        except SandboxFault as fault:
            return Result(Outcome.INFRASTRUCTURE, detail=str(fault))
        code = os.waitstatus_to_exitcode(end.status)
        outcome = cause[0] if cause else Outcome.EXITED if 0 <= code < 128 else Outcome.SIGNALLED
        out, err = streams
        return Result(
            outcome,
            exit_code=code if outcome is Outcome.EXITED else None,
            signal=code - 128 if outcome is Outcome.SIGNALLED else None,
            stdout=bytes(out.kept), stderr=bytes(err.kept),
            stdout_truncated=out.truncated, stderr_truncated=err.truncated,
            usage=Usage(wall_s=wall, cpu_s=end.cpu_s, stdout_bytes=out.seen, stderr_bytes=err.seen),
            detail=bytes(log.kept).decode(errors="backslashreplace") if code == 255 else "",
        )  # fmt: skip
