"""Jails of this process.

Invariant: when `run` returns, however it returns, nothing of the run is left: no process, mount, cgroup, file or uid.
When this process is killed the kernel takes everything along but empty cgroup folders, which the next start removes.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Self

import structlog

from shared.sandbox.binary import find_nsjail
from shared.sandbox.cgroups.base import Cgroups
from shared.sandbox.cgroups.choose import choose, owners_folders
from shared.sandbox.command import Command
from shared.sandbox.faults import SandboxFault, SandboxUnavailable
from shared.sandbox.keeper.client import KeeperClient
from shared.sandbox.limits import Limits
from shared.sandbox.network.allowed import allowed
from shared.sandbox.one_run import Means, OneRun, Site
from shared.sandbox.outcome import Outcome, Result
from shared.sandbox.prewarmed.forks import Prewarmed
from shared.sandbox.reaper import reap
from shared.sandbox.roots import Roots
from shared.sandbox.seccomp import Policy
from shared.sandbox.sessions.opening import open_session
from shared.sandbox.sessions.session import Session
from shared.sandbox.settings import SandboxSettings
from shared.sandbox.uids import Uids

RESTART_EVERY_S = 600.0
"""A keeper that is lost is started again, but not twice within this time: then something is wrong with the machine."""

_log = structlog.get_logger(__name__)


class Sandbox:
    """`async with Sandbox(settings) as sandbox: result = await sandbox.run(Command(("/bin/true",)), Limits())`.

    Of one event loop. Parts that others build on: `keeper`, `roots`, `uids`, `cgroups`, `nsjail`; `keeper` and `roots`
    are new objects after a restart, so they are read anew each time.
    """

    def __init__(
        self, settings: SandboxSettings | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.settings = settings or SandboxSettings()
        self.nsjail = find_nsjail(self.settings.nsjail)
        self._clock = clock
        self._seccomp = Policy().kafel()
        self._keeper = KeeperClient()
        self._roots = self._make_roots()
        self._cgroups: Cgroups | None = None
        self._uids: Uids | None = None
        self._prewarmed: Prewarmed | None = None
        self._runs: dict[OneRun, asyncio.Task[Result]] = {}
        self._numbers = 0
        self._closing = False
        self._starting = asyncio.Lock()
        self._restarted: float | None = None

    @property
    def keeper(self) -> KeeperClient:
        return self._keeper

    @property
    def roots(self) -> Roots:
        return self._roots

    @property
    def uids(self) -> Uids:
        """Raises `SandboxFault` before the start and after the end."""
        if self._uids is None:
            raise SandboxFault("the sandbox is not started: use it as `async with Sandbox() as sandbox`")
        return self._uids

    @property
    def cgroups(self) -> Cgroups:
        """Raises `SandboxFault` before the start and after the end."""
        if self._cgroups is None:
            raise SandboxFault("the sandbox is not started: use it as `async with Sandbox() as sandbox`")
        return self._cgroups

    @property
    def prewarmed(self) -> Prewarmed:
        """Small Python checks in forks of a warmed interpreter. Made at first use, closed with this."""
        if self._prewarmed is None:
            self._prewarmed = Prewarmed(self)
        return self._prewarmed

    @property
    def mode(self) -> str:
        """How runs are counted: `v1`, `v2`, or `none` (weaker, allowed by name)."""
        return self.cgroups.mode

    async def start(self) -> None:
        """Raises `SandboxUnavailable` where nothing can be jailed here."""
        folder = Path(self.settings.state_folder)
        self._closing = False
        self._cgroups = choose(self.settings)
        reaped = await asyncio.to_thread(reap, folder, owners_folders())
        if reaped.anything:
            _log.info("sandbox.reaped", **asdict(reaped))
        try:
            await self._keeper.start(folder)
            self._uids = Uids(folder, self.settings.first_uid, self.settings.uids)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Ends what still runs (as `Outcome.KILLED`), and removes all that was made. Harmless twice."""
        self._closing = True
        while self._runs:
            for run in self._runs:
                run.stop()
            await asyncio.wait(self._runs.values())
        if self._prewarmed is not None:
            await self._prewarmed.close()
            self._prewarmed = None
        await self._keeper.close()
        if self._cgroups is not None:
            self._cgroups.close()
            self._cgroups = None
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
        """One command in a fresh jail, to its end or to its limits. Cancelled, it first clears everything away.

        Never raises for what the program did, nor where it could not be run: that is `Outcome.INFRASTRUCTURE`.
        Raises `ConfigError` for a root or a network place that is not declared, `WorkspaceRefusal` where the command's files do not fit,
        `SandboxFault` where something of the run could not be removed.
        """
        uid = self.uids.take()
        try:
            return await self._run(command, limits or Limits(), root, "", uid)
        finally:
            if self._uids is not None:
                self._uids.give_back(uid)

    async def run_at(self, command: Command, limits: Limits, *, root: str, work: str, uid: int) -> Result:
        """As `run`, over a workspace that is already there and belongs to `uid`: a session's command, whose files are
        there too."""
        return await self._run(command, limits, root, work, uid)

    async def session(
        self, files: Mapping[str, bytes] | None = None, limits: Limits | None = None, *, root: str = "default"
    ) -> Session:
        """A workspace with these files for many commands; close it, or use it as `async with`.

        `limits` are of each command that brings none; `disk_mb` and `inodes` of the whole workspace with its
        snapshots and forks. Raises `ConfigError` for a root that is not declared, `WorkspaceRefusal` where the files
        do not fit, `SandboxFault` where it cannot be made.
        """
        uids = self.uids
        await self.ready()
        await self._roots.path(root)
        return await open_session(
            self,
            self._keeper,
            uid=uids.take(),
            files=files or {},
            limits=limits or Limits(),
            root=root,
            give_back=uids.give_back,
        )

    async def _run(self, command: Command, limits: Limits, root: str, work: str, uid: int) -> Result:
        network = allowed(command.network, self.settings.network) if command.network or command.home else None
        try:
            await self.ready()
            tree = await self._roots.path(root)
        except SandboxFault as fault:
            return self._not_run(str(fault))
        if self._closing:
            return self._not_run("")
        self._numbers += 1
        means = Means(self.nsjail, self._keeper, self.cgroups, self._seccomp)
        run = OneRun(means, Site(tree, uid, str(self._numbers), work, network, command.home), command, limits)
        # A task of its own: a cancelled caller ends the run, but does not interrupt its removal.
        task = self._runs[run] = asyncio.ensure_future(run.run())
        try:
            return await asyncio.shield(task)
        finally:
            run.stop()
            while not task.done():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait([task])
            del self._runs[run]

    def _not_run(self, fault: str) -> Result:
        if self._closing:
            return Result(Outcome.KILLED, detail="ended on request")
        return Result(Outcome.INFRASTRUCTURE, detail=fault)

    async def ready(self) -> None:
        """There is a keeper; a new one where the last was lost. Raises `SandboxFault` where none can be had."""
        if self._keeper.alive:
            return
        async with self._starting:
            if self._keeper.alive:
                return
            if self._closing or self._uids is None:
                raise SandboxFault("the sandbox is closed: use it as `async with Sandbox() as sandbox`")
            reason = self._keeper.lost
            now = self._clock()
            if self._restarted is not None and now - self._restarted < RESTART_EVERY_S:
                raise SandboxFault(f"the keeper was lost again ({reason}): see the kernel's log for kills")
            self._restarted = now
            await self._keeper.close()
            self._keeper = KeeperClient()
            self._roots = self._make_roots()
            try:
                await self._keeper.start(Path(self.settings.state_folder))
            except SandboxUnavailable as error:
                raise SandboxFault(
                    f"the keeper was lost ({reason}) and cannot be started again: {error}"
                ) from error
            _log.warning("sandbox.keeper_restarted", reason=reason)

    def _make_roots(self) -> Roots:
        return Roots(self._keeper, self.settings.roots, self.settings.python_packages)
