"""Workspaces on overlayfs, inside the keeper's mount namespace.

Invariant: what is mounted at a workspace's place is what `Layers` says; a change of layers is one message to the
keeper, so it is there or not. All layers of one family live in one tmpfs whose size is the family's quota.
"""

from __future__ import annotations

import os
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

from shared.sandbox.keeper.client import KeeperClient
from shared.sandbox.limits import MIB, Limits
from shared.sandbox.sessions.files import WorkspaceRefusal, write_files
from shared.sandbox.sessions.layers import MOST_LAYERS, Layers, Mounted, SnapshotId

Step = tuple[str | int, ...]
Finish = Coroutine[Any, Any, None]
"""The mounting that a change of layers still needs; awaited once."""
_OVERHEAD_INODES = 4096
"""Of the layers themselves: work folders, whiteouts."""
_SPARE_INODES = 64
"""Free before a layer is mounted, which takes eight: who fills the workspace must not be able to break its next snapshot
or rolling back, which would be a fault of ours to hide behind."""


class Store:
    """The layers of one family of workspaces, in a tmpfs of their own."""

    def __init__(self, keeper: KeeperClient, name: str, owner: int, limits: Limits) -> None:
        self._keeper = keeper
        self._limits = limits
        self._inodes = limits.inodes + _OVERHEAD_INODES
        self._count = 0
        self.layers = Layers()
        self.owner = owner
        self.path = f"{keeper.folder}/sessions/{name}"

    @property
    def alive(self) -> bool:
        return self._keeper.alive

    async def open(self) -> Workspace:
        """The tmpfs, and a first empty workspace in it."""
        name = self.name()
        mounted = self.layers.open(name)
        base, upper = mounted.lower[0], mounted.upper
        await self._keeper.do(
            ("folder", self.path, 0o711, 0),
            (
                "mount",
                "temper-session",
                self.path,
                "tmpfs",
                0,
                f"size={self._limits.disk_mb * MIB},nr_inodes={self._inodes},mode=0711",
            ),
            ("folder", f"{self.path}/w", 0o700, 0),
            ("folder", f"{self.path}/{base}", 0o755, self.owner),
            ("folder", f"{self.path}/{upper}", 0o755, self.owner),
            *self._mount_steps(name, mounted),
        )
        return Workspace(self, name)

    async def change(self, workspace: str, mounted: Mounted, *, settle: str = "") -> None:
        """Puts `mounted` where the workspace is. `settle`: the layer that is being frozen."""
        place = f"{self.path}/m{workspace}"
        steps: list[Step] = [self._roomier()]
        if settle:
            steps.append(("settle", place, f"{self.path}/w/{settle}/index"))
        steps.append(("unmount", place))
        if settle:
            # Its index holds one more link to every changed hard-linked file, and would be counted.
            steps.append(("remove", f"{self.path}/w/{settle}"))
        steps += [
            ("like", f"{self.path}/{mounted.upper}", f"{self.path}/{mounted.lower[0]}"),
            *self._mount_steps(workspace, mounted),
        ]
        await self._keeper.do(*steps)

    async def mount(self, workspace: str, mounted: Mounted) -> None:
        """A fork's first mount."""
        await self._keeper.do(
            self._roomier(),
            ("like", f"{self.path}/{mounted.upper}", f"{self.path}/{mounted.lower[0]}"),
            *self._mount_steps(workspace, mounted),
        )

    async def sweep(self, was: Mounted) -> None:
        """Removes what was mounted, as far as nobody needs it any more."""
        needed = self.layers.needed()
        gone = [layer for layer in (was.upper, *was.lower) if layer not in needed]
        folders = [f"{self.path}/{layer}" for layer in gone] + [f"{self.path}/w/{was.upper}"]
        await self._keeper.do(*(("discard", folder, f"{self.path}/trash") for folder in folders))

    async def close(self, workspace: str) -> bool:
        """True when it was the last of its family: the tmpfs is then gone with all layers."""
        was = self.layers.mounted(workspace)
        try:
            await self._keeper.do(("unmount", f"{self.path}/m{workspace}"))
        finally:  # the memory goes with the tmpfs, whatever became of the place
            self.layers.close(workspace)
            if self.layers.empty:
                await self._keeper.do(("unmount", self.path), ("remove", self.path))
        if self.layers.empty:
            return True
        await self.sweep(was)
        return False

    async def descriptor(self, workspace: str) -> int:
        """Of the mounted workspace; the caller closes it."""
        return await self._keeper.open(f"{self.path}/m{workspace}")

    def _mount_steps(self, workspace: str, mounted: Mounted) -> list[Step]:
        place = f"{self.path}/m{workspace}"
        return [
            ("folder", f"{self.path}/w/{mounted.upper}", 0o700, 0),
            ("folder", place, 0o755, 0),
            ("overlay", self.path, ":".join(mounted.lower), mounted.upper, place),
        ]

    def _roomier(self) -> Step:
        return ("room", self.path, self._limits.disk_mb * MIB, self._inodes, _SPARE_INODES)

    def name(self) -> str:
        self._count += 1
        return str(self._count)


class Workspace:
    """One mounted tree: its files, and its history."""

    def __init__(self, store: Store, name: str) -> None:
        self._store = store
        self._name = name

    @property
    def path(self) -> str:
        """As the keeper sees it."""
        return f"{self._store.path}/m{self._name}"

    @property
    def owner(self) -> int:
        return self._store.owner

    @property
    def lost(self) -> bool:
        """Its keeper is gone, and it with it."""
        return not self._store.alive

    def snapshot(self) -> tuple[SnapshotId, Finish]:
        """What it holds now. The workspace may be used again once the second part has been awaited."""
        before = self._store.layers.mounted(self._name)
        self._room(len(before.lower) + 1)
        snapshot, mounted = self._store.layers.freeze(self._name)
        return snapshot, self._store.change(self._name, mounted, settle=before.upper)

    def roll_back(self, snapshot: SnapshotId) -> Finish:
        """Raises `WorkspaceRefusal` for a snapshot that is not of this family, or was forgotten."""
        before = self._store.layers.mounted(self._name)
        try:
            mounted = self._store.layers.roll_back(self._name, snapshot)
        except KeyError:
            raise _unknown(snapshot, self._store.layers.snapshots) from None
        return self._rolled_back(before, mounted)

    async def _rolled_back(self, before: Mounted, mounted: Mounted) -> None:
        await self._store.change(self._name, mounted)
        await self._store.sweep(before)

    def fork(self, snapshot: SnapshotId | None = None) -> tuple[Workspace, Finish]:
        """A second workspace that holds what this one holds now, or held at a snapshot. Raises as `roll_back`."""
        if snapshot is None:
            now, frozen = self.snapshot()
        else:
            now, frozen = snapshot, _nothing()
        name = self._store.name()
        try:
            mounted = self._store.layers.fork(now, name)
        except KeyError:
            frozen.close()
            raise _unknown(now, self._store.layers.snapshots) from None
        if snapshot is None:
            self._store.layers.forget(now)
        return Workspace(self._store, name), self._forked(frozen, name, mounted)

    async def _forked(self, frozen: Finish, name: str, mounted: Mounted) -> None:
        await frozen
        await self._store.mount(name, mounted)

    def _room(self, depth: int) -> None:
        if depth > MOST_LAYERS:
            raise WorkspaceRefusal(
                f"{depth} snapshots deep: at most {MOST_LAYERS}; roll back, or copy into a new session"
            )

    async def forget(self, snapshot: SnapshotId) -> None:
        """The layers stay as long as something stands on them."""
        self._store.layers.forget(snapshot)

    async def descriptor(self) -> int:
        return await self._store.descriptor(self._name)

    async def put(self, files: Mapping[str, bytes]) -> None:
        """Raises `WorkspaceRefusal` where they do not fit."""
        folder = await self.descriptor()
        try:
            write_files(folder, files, self.owner)
        finally:
            os.close(folder)

    async def close(self) -> bool:
        """True when its whole family is gone."""
        return await self._store.close(self._name)


async def _nothing() -> None:
    """Where there is nothing left to do."""


def _unknown(snapshot: str, known: Sequence[str]) -> WorkspaceRefusal:
    return WorkspaceRefusal(f"there is no snapshot {snapshot!r}; there are: {', '.join(known) or 'none'}")
