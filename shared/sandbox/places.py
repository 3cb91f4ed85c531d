"""Where one run may write: /work, /tmp and /dev/shm, each a tmpfs with a quota.

Invariant: what a run wrote is read only when nothing of it is alive, through no link, and never more than its quota;
its places are gone when it is, but for the workspace of a session, which is not its own.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath

from shared.sandbox.command import WORK
from shared.sandbox.faults import SandboxFault
from shared.sandbox.keeper.client import KeeperClient, Space
from shared.sandbox.limits import MIB, Limits
from shared.sandbox.nsjail import tmpfs_options
from shared.sandbox.sessions.files import WorkspaceRefusal, listing, read_file, write_files
from shared.sandbox.threads import in_thread

TMP, SHM = "/tmp", "/dev/shm"


class Places:
    """Of one run, below the keeper's folder `base`. `work`: a workspace that is there already, and stays."""

    def __init__(self, keeper: KeeperClient, base: str, uid: int, limits: Limits, work: str = "") -> None:
        self._keeper = keeper
        self._base = base
        self._uid = uid
        self._limits = limits
        self._own = {path: f"{base}{path}" for path in (TMP, SHM, *(() if work else (WORK,)))}
        self._before: Space | None = None
        self.outside: Mapping[str, str] = {WORK: work, **self._own}
        """Each place as the keeper sees it, by its path in the jail."""

    async def make(self, files: Mapping[str, bytes]) -> None:
        """With these files in a fresh work folder; a session has written its own.

        Raises `SandboxFault`, and `WorkspaceRefusal` where the files do not fit.
        """
        options = tmpfs_options(self._limits)
        steps: list[tuple[str | int, ...]] = []
        for path, place in self._own.items():
            owned = f"{options},mode=0755,uid={self._uid},gid={self._uid}" if path == WORK else options
            steps += [("folder", place, 0o755, 0), ("mount", "temper-run", place, "tmpfs", 0, owned)]
        await self._keeper.do(*steps)
        if WORK not in self._own:
            (self._before,) = await self._keeper.space(self.outside[WORK])
        elif files:
            folder = await self._keeper.open(self.outside[WORK])
            try:
                write_files(folder, files, self._uid)
            finally:
                os.close(folder)

    async def used(self) -> int:
        """Bytes in the run's own places. Raises `SandboxFault`."""
        return sum(space.used for space in await self._keeper.space(*self._own.values()))

    async def filled(self) -> str:
        """What this run filled: a place, by its bytes or its inodes, or a file that could not grow. Empty: nothing.

        Raises `SandboxFault`.
        """
        places = list(self.outside.items())
        spaces = await self._keeper.space(*(place for _, place in places))
        # A session's workspace may have been full before: that is no reason for this command's end.
        grown = [
            (path, place, space)
            for (path, place), space in zip(places, spaces, strict=True)
            if self._before is None or path != WORK or _more(space, self._before)
        ]
        for path, _, space in grown:
            if space.full:
                return path
        for path, place, space in grown:
            # Python and others ignore SIGXFSZ, and see EFBIG: only the file itself tells.
            if space.used >= self._limits.file_mb * MIB and await self._holds_full_file(place):
                return f"a file in {path}"
        return ""

    async def collect(self, names: Iterable[str]) -> dict[str, bytes]:
        """Plain files of the work folder; together no more than the disk quota, so a hundred names of one large file
        cost what one costs. What cannot be read is not there. Raises `SandboxFault`."""
        wanted = tuple(names)
        if not wanted:
            return {}
        folder = await self._keeper.open(self.outside[WORK])
        try:
            return await in_thread(lambda: self._read_all(folder, wanted))
        finally:
            os.close(folder)

    async def remove(self) -> None:
        """Harmless where not all was made; a keeper that is gone took everything along."""
        unmounts = [("unmount", place) for place in self._own.values()]
        try:
            await self._keeper.do(*unmounts, ("remove", self._base))
        except SandboxFault:
            for step in (*unmounts, ("remove", self._base)):
                with contextlib.suppress(SandboxFault):
                    await self._keeper.do(step)

    async def _holds_full_file(self, place: str) -> bool:
        folder = await self._keeper.open(place)
        try:
            entries = await in_thread(lambda: listing(folder))
        except WorkspaceRefusal:
            return False
        finally:
            os.close(folder)
        return any(entry.kind == "file" and entry.size >= self._limits.file_mb * MIB for entry in entries)

    def _read_all(self, folder: int, wanted: tuple[str, ...]) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        left = self._limits.disk_mb * MIB
        for path in wanted:
            with contextlib.suppress(WorkspaceRefusal):
                contents = read_file(folder, str(PurePosixPath(path)), min(left, self._limits.file_mb * MIB))
                left -= len(contents)
                found[path] = contents
        return found


def _more(now: Space, before: Space) -> bool:
    return now.used > before.used or now.inodes_used > before.inodes_used
