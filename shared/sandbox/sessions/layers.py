"""The layers of a workspace: which are frozen, which one is written, who still needs which.

Invariant: a frozen layer never changes, and stays as long as a snapshot or a workspace stands on it; so a snapshot is
a list of names, and rolling back or forking copies nothing. Pure: mounting is `workspace.py`'s.

After overlayfs (Documentation/filesystems/overlayfs.rst): a workspace is one writable layer over frozen ones.
"""

from __future__ import annotations

from dataclasses import dataclass, field

MOST_LAYERS = 400
"""Under overlayfs's own limit of 500 lower layers (OVL_MAX_STACK)."""

SnapshotId = str
Layer = str


@dataclass(frozen=True, slots=True)
class Mounted:
    """What is mounted: the frozen layers, newest first, and the one that takes writes."""

    lower: tuple[Layer, ...]
    upper: Layer


@dataclass(slots=True)
class Layers:
    """One family of workspaces that share layers: a session and its forks."""

    _next: int = 0
    _snapshots: dict[SnapshotId, tuple[Layer, ...]] = field(default_factory=dict)
    _workspaces: dict[str, Mounted] = field(default_factory=dict)

    def open(self, workspace: str) -> Mounted:
        """A first workspace: one empty frozen layer below an empty writable one."""
        return self._put(workspace, Mounted((self._name(),), self._name()))

    def mounted(self, workspace: str) -> Mounted:
        return self._workspaces[workspace]

    def freeze(self, workspace: str) -> tuple[SnapshotId, Mounted]:
        """What the workspace holds now becomes a snapshot; it goes on in a new layer."""
        here = self._workspaces[workspace]
        stack = (here.upper, *here.lower)
        snapshot = f"snapshot-{self._next}"
        self._snapshots[snapshot] = stack
        return snapshot, self._put(workspace, Mounted(stack, self._name()))

    def roll_back(self, workspace: str, snapshot: SnapshotId) -> Mounted:
        """The workspace as it was. Raises `KeyError` for a snapshot that is not there."""
        return self._put(workspace, Mounted(self._snapshots[snapshot], self._name()))

    def fork(self, snapshot: SnapshotId, workspace: str) -> Mounted:
        """A second workspace over the same frozen layers. Raises `KeyError`."""
        return self._put(workspace, Mounted(self._snapshots[snapshot], self._name()))

    def forget(self, snapshot: SnapshotId) -> None:
        self._snapshots.pop(snapshot, None)

    def close(self, workspace: str) -> None:
        self._workspaces.pop(workspace, None)

    @property
    def snapshots(self) -> tuple[SnapshotId, ...]:
        return tuple(self._snapshots)

    @property
    def empty(self) -> bool:
        """Nobody works here any more: the store may go."""
        return not self._workspaces

    def depth(self, workspace: str) -> int:
        return len(self._workspaces[workspace].lower)

    def needed(self) -> frozenset[Layer]:
        """Every other layer may be removed."""
        stacks = [*self._snapshots.values(), *(m.lower for m in self._workspaces.values())]
        return frozenset(layer for stack in stacks for layer in stack) | {
            mounted.upper for mounted in self._workspaces.values()
        }

    def _put(self, workspace: str, mounted: Mounted) -> Mounted:
        self._workspaces[workspace] = mounted
        return mounted

    def _name(self) -> Layer:
        # Short: a mount takes one page of options, and four hundred names of layers must fit.
        self._next += 1
        return f"{self._next:x}"
