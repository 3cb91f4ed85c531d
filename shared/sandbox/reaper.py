"""What a killed process of ours left behind.

Invariant: only what belongs to a process that is known to be gone is touched. Its jails and mounts went with its
keeper; what stays are empty control groups and empty folders where mounts were, and, should the keeper's end have
been delayed, processes in those groups, which are killed first.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from shared.sandbox.owners import owner_of

_TRIES, _PAUSE_S = 100, 0.01


@dataclass(frozen=True, slots=True)
class Reaped:
    """What was removed. `stuck`: groups that would not go; the next start tries again."""

    groups: int = 0
    processes: int = 0
    folders: int = 0
    stuck: int = 0

    @property
    def anything(self) -> bool:
        return bool(self.groups or self.processes or self.folders or self.stuck)


def reap(state_folder: Path, owners_folders: Sequence[Path]) -> Reaped:
    """Removes the leftovers of owners that are gone. Never raises for what will not go."""
    groups = processes = stuck = 0
    for folder in owners_folders:
        for owner in _of_the_gone(folder):
            # The deepest first: a group with groups below it cannot be removed.
            for group in [*sorted(_below(owner), key=lambda path: -len(path.parts)), owner]:
                processes += _killed(group)
                if _removed(group):
                    groups += 1
                else:
                    stuck += 1
    folders = 0
    for keeper in state_folder.glob("keeper-*") if state_folder.is_dir() else ():
        if owner_of(keeper.name.removeprefix("keeper-")) == "gone":
            with contextlib.suppress(OSError):
                keeper.rmdir()
                folders += 1
    return Reaped(groups, processes, folders, stuck)


def _of_the_gone(folder: Path) -> list[Path]:
    with contextlib.suppress(OSError):
        return [path for path in folder.iterdir() if path.is_dir() and owner_of(path.name) == "gone"]
    return []


def _below(folder: Path) -> list[Path]:
    return [Path(found) for found, _, _ in os.walk(folder) if Path(found) != folder]


def _killed(group: Path) -> int:
    """How many processes were still inside."""
    count = 0
    with contextlib.suppress(OSError):
        for line in (group / "cgroup.procs").read_text().split():
            # 0 is a process of a pid namespace that we do not see into: its own keeper's end takes it.
            if line != "0":
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(line), signal.SIGKILL)
                    count += 1
    return count


def _removed(group: Path) -> bool:
    for _ in range(_TRIES):
        try:
            group.rmdir()
            return True
        except FileNotFoundError:
            return True
        except OSError:
            _killed(group)
            time.sleep(_PAUSE_S)
    return False
