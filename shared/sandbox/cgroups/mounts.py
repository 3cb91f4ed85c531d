"""Where control groups are on this machine.

Invariant: our groups are never outside of a limit that somebody set on us: from our own group we go up only past
groups that limit nothing. So the place does not change from one start to the next (leftovers are found), and an
operator's bound on the service holds its jails too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

V2 = ""
"""The name of the unified hierarchy in /proc/self/cgroup."""


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """One mounted hierarchy, and this process's own group in it."""

    controllers: frozenset[str]
    """Empty for the unified one."""
    mount: Path
    own: Path

    def up(self) -> list[Path]:
        """Our own group and those above it, up to the mount."""
        found = [self.own]
        while found[-1] != self.mount:
            found.append(found[-1].parent)
        return found


def hierarchies(mountinfo: str, own_groups: str) -> list[Hierarchy]:
    """Of the texts of /proc/self/mountinfo and /proc/self/cgroup (proc(5), cgroups(7))."""
    own: dict[frozenset[str], str] = {}
    for line in own_groups.splitlines():
        _, listed, path = line.split(":", 2)
        own[frozenset(listed.split(",")) if listed else frozenset()] = path
    found: list[Hierarchy] = []
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields, (kind, _, options) = before.split(), after.split(" ", 2)
        if kind not in ("cgroup", "cgroup2"):
            continue
        names = frozenset[str]() if kind == "cgroup2" else _controllers(options, own)
        if names is None or names not in own or any(one.controllers == names for one in found):
            continue
        mount = Path(_unescaped(fields[4]))
        found.append(Hierarchy(names, mount, _inside(mount, _unescaped(fields[3]), own[names])))
    return found


def machine() -> list[Hierarchy]:
    """Of this machine, as this process sees it."""
    return hierarchies(Path("/proc/self/mountinfo").read_text(), Path("/proc/self/cgroup").read_text())


def place(hierarchy: Hierarchy, limits: Sequence[str]) -> Path:
    """The highest group from ours up with no group below it, ours included, that holds one of the files `limits` with
    a number in it that bounds something."""
    chosen = hierarchy.own
    for group in hierarchy.up():
        chosen = group
        if any(_bounds(group / name) for name in limits):
            break
    return chosen


def _controllers(options: str, own: dict[frozenset[str], str]) -> frozenset[str] | None:
    words = frozenset(options.split(","))
    return next((names for names in own if names and names <= words), None)


def _inside(mount: Path, root: str, own: str) -> Path:
    """In a container the mount may show a part of the hierarchy only: then our path is told from above it."""
    if root != "/":
        own = own.removeprefix(root) if (own + "/").startswith(root.rstrip("/") + "/") else "/"
    path = mount / own.lstrip("/")
    return path if path.is_dir() else mount


def _unescaped(text: str) -> str:
    return text.encode().decode("unicode_escape") if "\\" in text else text


def _bounds(file: Path) -> bool:
    with contextlib.suppress(OSError):
        text = file.read_text().split()[0]
        # Version 1 says "no limit" with the largest number of pages, or -1 for a quota; version 2 with a word.
        return text not in ("max", "-1") and int(text) < 1 << 60
    return False
