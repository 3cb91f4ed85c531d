"""Whose something is: a name for this process that no other ever has.

Invariant: a name is judged only by a process of the same pid namespace; to others its owner's number means nothing,
and a container that shares a cgroup tree with us must not have its jails taken for leftovers.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Literal

_NAME = re.compile(r"(\d+)-(\d+)-(\d+)")


def owner_name(pid: int | None = None) -> str:
    """`<pid>-<start time in clock ticks since boot>-<pid namespace>`."""
    number = os.getpid() if pid is None else pid
    return f"{number}-{_start_of(number)}-{_namespace()}"


def owner_of(name: str) -> Literal["alive", "gone", "unknown"]:
    """Of a name that begins with an owner's. `unknown`: not such a name, or from another pid namespace."""
    match = _NAME.match(name)
    if match is None or int(match[3]) != _namespace():
        return "unknown"
    try:
        return "alive" if _start_of(int(match[1])) == int(match[2]) else "gone"
    except (FileNotFoundError, ProcessLookupError):
        return "gone"


def _start_of(pid: int) -> int:
    """Raises `FileNotFoundError` where there is no such process."""
    return int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[19])


def _namespace() -> int:
    return Path("/proc/self/ns/pid").stat().st_ino
