"""Workspaces on overlayfs, inside the keeper's mount namespace.

Invariant: what is mounted at a workspace's place is what `Layers` says; a change of layers is one message to the
keeper, so it is there or not. All layers of one family live in one tmpfs whose size is the family's quota.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from shared.sandbox.faults import SandboxFault
from shared.sandbox.keeper.client import KeeperClient
from shared.sandbox.limits import MIB, Limits
from shared.sandbox.sessions.files import WorkspaceRefusal, write_file
from shared.sandbox.sessions.layers import MOST_LAYERS, Layers, Mounted, SnapshotId

Step = tuple[str | int, ...]
_OVERHEAD_INODES = 4096
"""Of the layers themselves: work folders, whiteouts."""


class Store:
    """The layers of one family of workspaces, in a tmpfs of their own."""

    def __init__(self, keeper: KeeperClient, name: str, owner: int, limits: Limits) -> None:
        self._keeper = keeper
        self._limits = limits
        self._count = 0
        self.layers = Layers()
        self.owner = owner
        self.path = f"{keeper.folder}/sessions/{name}"

    async def open(self) -> Workspace:
        """The tmpfs, and a first empty workspace in it."""
        size = (
            f"size={self._limits.disk_mb * MIB},nr_inodes={self._limits.inodes + _OVERHEAD_INODES},mode=0711"
        )
        name = self._name()
        mounted = self.layers.open(name)
        base, upper = mounted.lower[0], mounted.upper
        await self._keeper.do(
            ("folder", self.path, 0o711, 0),
            ("mount", "temper-session", self.path, "tmpfs", 0, size),
            ("folder", f"{self.path}/w", 0o700, 0),
            ("folder", f"{self.path}/{base}", 0o755, self.owner),
            ("folder", f"{self.path}/{upper}", 0o755, self.owner),
            *self._mount_steps(name, mounted),
        )
        return Workspace(self, name)

    async def change(self, workspace: str, mounted: Mounted, *, settle: str = "") -> None:
        """Puts `mounted` where the workspace is. `settle`: the layer that is being frozen."""
        place = f"{self.path}/m{workspace}"
        steps: list[Step] = []
        if settle:
            steps.append(("settle", place, f"{self.path}/w/{settle}/index"))
        steps += [
            ("unmount", place),
            ("like", f"{self.path}/{mounted.upper}", f"{self.path}/{mounted.lower[0]}"),
            *self._mount_steps(workspace, mounted),
        ]
        await self._keeper.do(*steps)

    async def fork(self, snapshot: SnapshotId) -> Workspace:
        name = self._name()
        mounted = self.layers.fork(snapshot, name)
        await self._keeper.do(
            ("like", f"{self.path}/{mounted.upper}", f"{self.path}/{mounted.lower[0]}"),
            *self._mount_steps(name, mounted),
        )
        return Workspace(self, name)

    async def sweep(self, was: Sequence[str]) -> None:
        """Removes those layers of `was` that nobody needs any more."""
        needed = self.layers.needed()
        gone = [layer for layer in dict.fromkeys(was) if layer not in needed]
        await self._keeper.do(
            *(("discard", f"{self.path}/{layer}", f"{self.path}/trash") for layer in gone),
            *(("discard", f"{self.path}/w/{layer}", f"{self.path}/trash") for layer in gone if layer != "1"),
        )

    async def close(self, workspace: str) -> bool:
        """True when it was the last of its family: the tmpfs is then gone with all layers."""
        was = self.layers.mounted(workspace)
        await self._keeper.do(("unmount", f"{self.path}/m{workspace}"))
        self.layers.close(workspace)
        if not self.layers.empty:
            await self.sweep((was.upper, *was.lower))
            return False
        await self._keeper.do(("unmount", self.path), ("remove", self.path))
        return True

    async def descriptor(self, workspace: str) -> int:
        """Of the mounted workspace; the caller closes it."""
        return await self._keeper.open(f"{self.path}/m{workspace}")

    def _mount_steps(self, workspace: str, mounted: Mounted) -> list[Step]:
        if len(mounted.lower) > MOST_LAYERS:
            raise WorkspaceRefusal(
                f"{len(mounted.lower)} snapshots deep: at most {MOST_LAYERS}; roll back, or copy into a new session"
            )
        place = f"{self.path}/m{workspace}"
        return [
            ("folder", f"{self.path}/w/{mounted.upper}", 0o700, 0),
            ("folder", place, 0o755, 0),
            ("overlay", self.path, ":".join(mounted.lower), mounted.upper, place),
        ]

    def _name(self) -> str:
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

    async def snapshot(self) -> SnapshotId:
        before = self._store.layers.mounted(self._name)
        snapshot, mounted = self._store.layers.freeze(self._name)
        await self._store.change(self._name, mounted, settle=before.upper)
        return snapshot

    async def roll_back(self, snapshot: SnapshotId) -> None:
        """Raises `WorkspaceRefusal` for a snapshot that is not of this family, or was forgotten."""
        before = self._store.layers.mounted(self._name)
        try:
            mounted = self._store.layers.roll_back(self._name, snapshot)
        except KeyError:
            raise _unknown(snapshot, self._store.layers.snapshots) from None
        await self._store.change(self._name, mounted)
        await self._store.sweep((before.upper, *before.lower))

    async def fork(self, snapshot: SnapshotId | None = None) -> Workspace:
        """A second workspace that holds what this one holds now, or held at a snapshot."""
        try:
            if snapshot is not None:
                return await self._store.fork(snapshot)
            now = await self.snapshot()
            fork = await self._store.fork(now)
            self._store.layers.forget(now)
        except KeyError:
            raise _unknown(str(snapshot), self._store.layers.snapshots) from None
        return fork

    async def forget(self, snapshot: SnapshotId) -> None:
        """The layers stay as long as something stands on them."""
        self._store.layers.forget(snapshot)

    async def descriptor(self) -> int:
        return await self._store.descriptor(self._name)

    async def put(self, files: Mapping[str, bytes]) -> None:
        """Raises `WorkspaceRefusal` where they do not fit."""
        folder = await self.descriptor()
        try:
            for path, contents in files.items():
                write_file(folder, path, contents, 0o644, self.owner)
        finally:
            os.close(folder)

    async def close(self) -> bool:
        """True when its whole family is gone."""
        return await self._store.close(self._name)


def _unknown(snapshot: str, known: Sequence[str]) -> SandboxFault | WorkspaceRefusal:
    return WorkspaceRefusal(f"there is no snapshot {snapshot!r}; there are: {', '.join(known) or 'none'}")
