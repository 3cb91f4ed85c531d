"""A session: one workspace, many commands.

Invariant: every command runs in a fresh jail over the same workspace and its processes end with it; so at a snapshot
nothing holds a file open, and a rollback needs no program's consent. A command of one session is never seen by
another, forks included.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Mapping
from types import TracebackType
from typing import Protocol, Self, TypeVar

from shared.sandbox.command import Command
from shared.sandbox.faults import SandboxFault
from shared.sandbox.limits import MIB, Limits
from shared.sandbox.outcome import Outcome, Result
from shared.sandbox.sessions.files import (
    Entry,
    WorkspaceRefusal,
    listing,
    read_file,
    remove_file,
    write_file,
)
from shared.sandbox.sessions.layers import SnapshotId
from shared.sandbox.sessions.packing import pack, unpack
from shared.sandbox.sessions.workspace import Finish, Workspace
from shared.sandbox.threads import in_thread

MOST_READ = 16 * MIB
T = TypeVar("T")


class RunsAt(Protocol):
    """A sandbox, as a session needs it: one command over a workspace that is already there."""

    async def run_at(self, command: Command, limits: Limits, *, root: str, work: str, uid: int) -> Result: ...


class Session:
    """`exec`, `read`, `write`, `snapshot`, `roll_back`, `fork`, `close`. Made by `Sandbox.session`.

    Commands of one session may run at the same time; snapshots, rollbacks and forks wait for those that run, and
    commands wait for them.
    """

    def __init__(
        self, sandbox: RunsAt, workspace: Workspace, limits: Limits, root: str, gone: Callable[[int], None]
    ) -> None:
        self._sandbox = sandbox
        self._workspace = workspace
        self._limits = limits
        self._root = root
        self._gone = gone
        self._running = 0
        self._still = asyncio.Condition()
        self._changing = False
        self._closed = False
        self._ending = False
        self._fault: SandboxFault | None = None
        self._change: asyncio.Task[None] | None = None
        self._commands: set[asyncio.Future[Result]] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def limits(self) -> Limits:
        """Of a command that brings none."""
        return self._limits

    async def exec(self, command: Command, limits: Limits | None = None) -> Result:
        """One command over the workspace. `command.files` are written first; what it collects is read afterwards.

        Raises `WorkspaceRefusal` where the files cannot be written; never for what the command did.
        """
        async with self._in_use():
            if command.files:
                await self._workspace.put(command.files)
            return await self._run(command, limits or self._limits)

    async def _run(self, command: Command, limits: Limits) -> Result:
        """Raises nothing when `end` ends it: the result says that we did."""
        place, owner = self._workspace.path, self._workspace.owner
        run = asyncio.ensure_future(
            self._sandbox.run_at(command, limits, root=self._root, work=place, uid=owner)
        )
        self._commands.add(run)
        try:
            return await run
        except asyncio.CancelledError:
            if not self._ending or not run.cancelled():
                raise
            return Result(Outcome.KILLED, detail="its session was ended")
        finally:
            run.cancel()
            self._commands.discard(run)

    async def read(self, path: str, most_bytes: int = MOST_READ) -> bytes:
        """A plain file of the workspace; no link is followed. Raises `WorkspaceRefusal`."""
        async with self._folder() as folder:
            return await in_thread(lambda: read_file(folder, path, most_bytes))

    async def write(self, path: str, contents: bytes, mode: int = 0o644) -> None:
        """Replaces a file in one step, folders above it made. Raises `WorkspaceRefusal`."""
        async with self._in_use(), self._folder() as folder:
            owner = self._workspace.owner
            await in_thread(lambda: write_file(folder, path, contents, mode, owner))

    async def write_all(self, files: Mapping[str, bytes]) -> None:
        async with self._in_use():
            await self._workspace.put(files)

    async def remove(self, path: str) -> None:
        """One name less. Raises `WorkspaceRefusal`."""
        async with self._in_use(), self._folder() as folder:
            remove_file(folder, path)

    async def packed(self, most_bytes: int) -> bytes:
        """The whole workspace, for `unpack` elsewhere. Raises `WorkspaceRefusal` for one that cannot be carried."""
        async with self._in_use(), self._folder() as folder:
            return await in_thread(lambda: pack(folder, most_bytes))

    async def unpack(self, packed: bytes) -> None:
        """Into a session in which nothing was done yet. Raises `WorkspaceRefusal` where it does not fit."""
        async with self._in_use(), self._folder() as folder:
            await in_thread(lambda: unpack(folder, packed, self._workspace.owner))

    async def listing(self) -> list[Entry]:
        """Every name in the workspace, sorted. Raises `WorkspaceRefusal` where there are too many."""
        async with self._folder() as folder:
            return await in_thread(lambda: listing(folder))

    async def snapshot(self) -> SnapshotId:
        """What the workspace holds now, kept: tree, contents, modes, times and links. Copies nothing.

        It is taken when this returns; mounting a new layer goes on behind it (about a microsecond for each name that
        was in use), and the next command waits for that.
        """
        await self._still_first()
        return await self._settled(self._workspace.snapshot)

    async def roll_back(self, snapshot: SnapshotId) -> None:
        """The workspace as it was at `snapshot`, which stays. Raises `WorkspaceRefusal` for an unknown one."""
        await self._still_first()
        await self._settled(lambda: (None, self._workspace.roll_back(snapshot)))

    async def fork(self, snapshot: SnapshotId | None = None) -> Session:
        """A session of its own that starts from here, or from a snapshot; the quota of files is the family's."""
        await self._still_first()
        workspace = await self._settled(lambda: self._workspace.fork(snapshot))
        fork = Session(self._sandbox, workspace, self._limits, self._root, self._gone)
        fork._changing, fork._change = True, asyncio.create_task(fork._after(self._change))
        return fork

    async def ready(self) -> None:
        """Returns once the last snapshot, rollback or fork is through."""
        async with self._still:
            await self._still.wait_for(lambda: not self._changing)

    async def forget(self, snapshot: SnapshotId) -> None:
        """Its space is freed once nothing stands on it."""
        await self._workspace.forget(snapshot)

    async def close(self) -> None:
        """Waits for commands that run, then takes everything away. Harmless twice."""
        try:
            await self._still_first()
        except WorkspaceRefusal:
            return
        self._closed = True
        try:
            if await self._workspace.close():
                self._gone(self._workspace.owner)
        except SandboxFault:
            if not self._workspace.lost:
                raise
            # The keeper is gone, and every mount and process with it: the number is free.
            self._gone(self._workspace.owner)
        finally:
            await self._changed()

    async def end(self) -> None:
        """As `close`, but commands that run are killed; they end as `Outcome.KILLED`."""
        self._ending = True
        for run in self._commands:
            run.cancel()
        await self.close()

    async def _settled(self, change: Callable[[], tuple[T, Finish]]) -> T:
        """The value of a change at once; its mounting behind."""
        try:
            value, finish = change()
        except BaseException:
            await self._changed()
            raise
        self._change = asyncio.create_task(self._finished(finish))
        return value

    async def _finished(self, finish: Finish) -> None:
        try:
            await finish
        except SandboxFault as fault:
            self._fault = fault
        finally:
            await self._changed()

    async def _after(self, change: asyncio.Task[None] | None) -> None:
        if change is not None:
            await asyncio.wait([change])
        await self._changed()

    def _usable(self) -> None:
        if self._closed or self._ending:
            raise WorkspaceRefusal("the session is closed: open another")
        if self._fault is not None:
            raise SandboxFault(f"the session was lost: {self._fault}")

    @contextlib.asynccontextmanager
    async def _folder(self) -> AsyncIterator[int]:
        """A descriptor of the workspace. Raises `WorkspaceRefusal`, `SandboxFault`."""
        await self.ready()
        self._usable()
        folder = await self._workspace.descriptor()
        try:
            yield folder
        finally:
            os.close(folder)

    @contextlib.asynccontextmanager
    async def _in_use(self) -> AsyncIterator[None]:
        """Waits for a change of layers, and lets none begin meanwhile. Raises `WorkspaceRefusal`, `SandboxFault`."""
        async with self._still:
            await self._still.wait_for(lambda: not self._changing)
            self._usable()
            self._running += 1
        try:
            yield
        finally:
            async with self._still:
                self._running -= 1
                self._still.notify_all()

    async def _still_first(self) -> None:
        async with self._still:
            await self._still.wait_for(lambda: not self._changing)
            self._changing = True
            try:
                await self._still.wait_for(lambda: self._running == 0)
                if self._closed:
                    raise WorkspaceRefusal("the session is closed: open another")
            except BaseException:
                self._changing = False
                self._still.notify_all()
                raise

    async def _changed(self) -> None:
        async with self._still:
            self._changing = False
            self._still.notify_all()
