"""The ways of counting that this machine has, a sandbox in each, and what it must not leave."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from shared.sandbox.cgroups.choose import available, owners_folders
from shared.sandbox.command import Command
from shared.sandbox.limits import Limits
from shared.sandbox.outcome import Result
from shared.sandbox.owners import owner_name
from shared.sandbox.sandbox import Sandbox
from shared.sandbox.settings import SandboxSettings

MODES = [mode for mode, lacks in available().items() if not lacks]
PATIENCE = float(os.environ.get("TEMPER_TEST_PATIENCE", "1"))
"""How many times more seconds a run may have than it needs on an ordinary machine: an emulated one (tests/vm) takes
two seconds to start an interpreter."""
T = TypeVar("T")


def patient(limits: Limits) -> Limits:
    """The same limits for this machine: only times differ."""
    return replace(limits, wall_s=limits.wall_s * PATIENCE, cpu_s=limits.cpu_s * PATIENCE)


def settings_of(mode: str, **more: Any) -> SandboxSettings:
    weaker = ("rlimits_only",) if mode == "none" else ()
    return SandboxSettings(cgroups=mode, allow_weaker=weaker, **more)  # type: ignore[arg-type]


class Jailer:
    """A started sandbox with a loop of its own."""

    def __init__(self, mode: str, sandbox: Sandbox, runner: asyncio.Runner) -> None:
        self.mode = mode
        self.sandbox = sandbox
        self._runner = runner

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)

    def run(self, command: Command, limits: Limits) -> Result:
        return self.wait(self.sandbox.run(command, patient(limits)))

    def leftovers(self) -> list[str]:
        """Processes of jails' users, mounts and files of runs, control groups: of this sandbox."""
        keeper, settings = self.sandbox.keeper, self.sandbox.settings
        users = range(settings.first_uid, settings.first_uid + settings.uids)
        found = [f"process {pid}" for pid, uid in _processes() if uid in users and _ours(pid, keeper.pid)]
        inside = Path(f"/proc/{keeper.pid}/root")
        mounts = Path(f"/proc/{keeper.pid}/mountinfo").read_text().splitlines()
        found += [f"mount {line}" for line in mounts if f"{keeper.folder}/runs" in line]
        runs = inside / keeper.folder.lstrip("/") / "runs"
        found += [f"folder {path}" for path in runs.iterdir()] if runs.exists() else []
        return found + groups_of(owner_name())


def groups_of(owner: str) -> list[str]:
    return [
        f"group {path}"
        for folder in owners_folders()
        if (folder / owner).is_dir()
        for path in (folder / owner).iterdir()
        if path.is_dir()
    ]


def _processes() -> Iterator[tuple[int, int]]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                found = entry.stat()
            except OSError:
                continue
            yield int(entry.name), found.st_uid


def _ours(pid: int, keeper: int) -> bool:
    """Below the keeper: other sandboxes of this machine use numbers of the same range."""
    while pid not in (0, 1, keeper):
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[1])
        except OSError:
            return False
    return pid == keeper


@contextmanager
def jailer(mode: str, **more: Any) -> Iterator[Jailer]:
    with asyncio.Runner() as runner:
        sandbox = Sandbox(settings_of(mode, **more))
        runner.run(sandbox.start())
        folder = sandbox.keeper.folder
        try:
            yield Jailer(mode, sandbox, runner)
        finally:
            runner.run(sandbox.close())
        assert not Path(folder).exists()
