"""One run, from its first mount to the last trace of it.

Invariant: whatever happens, in this order: everything of the run is killed and waited for, then counted, then what it
wrote is read, then its mounts, files and group are removed. Nothing is judged while something of it can still move.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from shared.sandbox.cgroups.base import Cgroups, Counters, Group
from shared.sandbox.cgroups.none import LOOK_S, Look, NoGroup, address_space_mb
from shared.sandbox.command import WORK, Command
from shared.sandbox.faults import SandboxFault
from shared.sandbox.keeper.client import Init, KeeperClient, KeptProcess, Space
from shared.sandbox.keeper.init import PROC
from shared.sandbox.limits import MIB, Limits
from shared.sandbox.network.allowed import Allowed
from shared.sandbox.network.proxy import PORT, Proxy
from shared.sandbox.network.proxy import environment as door_environment
from shared.sandbox.nsjail import Jail, command_line, tmpfs_options
from shared.sandbox.nsjail_log import NOT_EXECUTABLE, Ending, ending
from shared.sandbox.outcome import Outcome, Result, Usage
from shared.sandbox.outcome_rules import Evidence, decide
from shared.sandbox.report import Report
from shared.sandbox.sessions.files import WorkspaceRefusal, listing, read_file, write_file
from shared.sandbox.streams import Drain, Feed
from shared.sandbox.watch import Watch

ENVIRONMENT = {
    "PATH": "/python/bin:/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin",
    "PYTHONPATH": "/python-packages",
    "HOME": WORK,
    "LANG": "C.UTF-8",
}
LOG_DESCRIPTOR = 3
LOG_CAP = 1 << 16
MOST_ARGUMENT = 128 << 10
"""Of one argument: the kernel's MAX_ARG_STRLEN (execve(2))."""
MOST_ARGUMENTS = 192 << 10
"""Of all, with the environment: what one message to the keeper holds beside the system call filter."""
_SHELL = ("/bin/sh", "-c", 'exec "$0" "$@"')
"""Looks a bare name up inside the jail; nsjail starts paths only."""
_GONE_TRIES, _GONE_PAUSE_S = 200, 0.01
_NOT_OVERLAID = ("/tmp", "/dev/shm")


@dataclass(frozen=True, slots=True)
class Means:
    """What every run of one sandbox is made with."""

    nsjail: str
    keeper: KeeperClient
    cgroups: Cgroups
    seccomp: str


@dataclass(frozen=True, slots=True)
class Site:
    """Where one run is made. `work`: a folder, as the keeper sees it, that is /work and stays; empty: a fresh one.
    `name`: of this run, in the keeper's folder."""

    root: str
    uid: int
    name: str
    work: str = ""
    network: Allowed | None = None
    """Where it may connect to; None is nowhere."""


class OneRun:
    """`await run()` once. `stop` ends it as `Outcome.KILLED`."""

    def __init__(self, means: Means, site: Site, command: Command, limits: Limits) -> None:
        self._means = means
        self._keeper = means.keeper
        self._site = site
        self._command = command
        self._limits = limits
        self._base = f"{means.keeper.folder}/runs/{site.name}"
        self._own = {path: f"{self._base}{path}" for path in _NOT_OVERLAID}
        self._places = {**self._own, WORK: site.work}
        if not site.work:
            self._places[WORK] = self._own[WORK] = f"{self._base}{WORK}"
        self._group: Group | None = None
        self._watch: Watch | None = None
        self._stopped_early = False
        self._wall_s = 0.0
        self._in_tmpfs = 0
        self._before: Space | None = None
        self._asking: asyncio.Task[None] | None = None

    def stop(self) -> None:
        self._stopped_early = True
        if self._watch is not None:
            self._watch.stop()

    async def run(self) -> Result:
        """Never raises for what the program did, nor where it could not be run.

        Raises `WorkspaceRefusal` where the command's files do not fit, `SandboxFault` where something of the run could
        not be removed.
        """
        size = [len(os.fsencode(text)) for text in (*self._command.argv, *self._command.environment.values())]
        if max(size) >= MOST_ARGUMENT or sum(size) >= MOST_ARGUMENTS:
            return Result(Outcome.EXITED, exit_code=NOT_EXECUTABLE, detail="argument list too long")
        try:
            self._group = self._means.cgroups.make(self._limits)
            await self._prepare()
            return await self._start()
        except SandboxFault as fault:
            return Result(Outcome.INFRASTRUCTURE, detail=str(fault))
        finally:
            await self._remove()

    async def _prepare(self) -> None:
        options = tmpfs_options(self._limits)
        steps: list[tuple[str | int, ...]] = []
        for path, place in self._own.items():
            owned = (
                f"{options},mode=0755,uid={self._site.uid},gid={self._site.uid}" if path == WORK else options
            )
            steps += [("folder", place, 0o755, 0), ("mount", "temper-run", place, "tmpfs", 0, owned)]
        await self._keeper.do(*steps)
        if self._site.work:
            (self._before,) = await self._keeper.space(self._site.work)
        if self._command.files and not self._site.work:
            folder = await self._keeper.open(self._places[WORK])
            try:
                for path, contents in self._command.files.items():
                    write_file(folder, path, contents, 0o644, self._site.uid)
            finally:
                os.close(folder)

    async def _start(self) -> Result:
        assert self._group is not None
        self._watch = watch = Watch(self._limits, self._group.counters)
        if self._stopped_early:
            watch.stop()
        theirs, ours = _pipes()
        look_s = LOOK_S if isinstance(self._group, NoGroup) else 0.0
        try:
            process = await self._keeper.spawn(
                self._argv(), {}, {0: theirs[0], 1: theirs[1], 2: theirs[2], LOG_DESCRIPTOR: theirs[3]},
                self._group.joins, init=Init(theirs[4], look_s, tuple(self._places.values())), door=PORT if self._site.network else 0,
            )  # fmt: skip
        except BaseException:
            _close(ours)
            raise
        finally:
            _close(theirs)
        proxy = await self._serve_door(process)
        # The keeper starts one process after the other: with many runs at once, waiting for it is no time of theirs.
        watch.restart()
        cap = self._limits.output_kb << 10
        feed = Feed(ours[0], self._command.stdin)
        streams = Drain(ours[1], cap, watch.flooded), Drain(ours[2], cap, watch.flooded)
        log = Drain(ours[3], LOG_CAP, _nothing, tail=True)
        report = Report(ours[4], self._look, watch.ended)
        try:
            stopped, lost = await self._until_over(watch, process)
        finally:
            for one in (*streams, log, report):
                one.finish()
            feed.close()
            if proxy is not None:
                await proxy.close()
        return await self._judge(streams, bytes(log.kept), report, stopped, lost)

    async def _serve_door(self, process: KeptProcess) -> Proxy | None:
        if process.door is None or self._site.network is None:
            return None
        proxy = Proxy(process.door, self._site.network)
        await proxy.start()
        return proxy

    async def _until_over(self, watch: Watch, process: KeptProcess) -> tuple[Outcome | None, str]:
        """Why we ended it, and why it is lost. When this ends, however it ends, nothing of the run is alive."""
        stopped, lost = None, ""
        try:
            stopped = await watch.wait()
        except SandboxFault as fault:
            lost = str(fault)
        finally:
            self._wall_s = watch.seconds
            lost = await self._kill(process) or lost
        return stopped, lost

    async def _kill(self, process: KeptProcess) -> str:
        """Why it cannot be known to be gone by itself; empty when it is."""
        assert self._group is not None
        try:
            await process.signal(signal.SIGKILL)
            await process.wait()
            self._group.kill()
        except SandboxFault as fault:
            # The keeper is gone first, and what was below it goes in the same moment, but not before.
            self._group.kill()
            await nobody_of(self._site.uid)
            return str(fault)
        return ""

    async def _judge(
        self, streams: tuple[Drain, Drain], log: bytes, report: Report, stopped: Outcome | None, lost: str
    ) -> Result:
        assert self._group is not None
        final = report.final
        if isinstance(self._group, NoGroup) and final is not None:
            self._group.end(final.cpu_s)
        counters, artifacts, full = Counters(), dict[str, bytes](), ""
        try:
            counters = self._group.counters()
            full = await self._full()
            artifacts = await self._collect()
        except SandboxFault as fault:
            lost = lost or str(fault)
        if final is None and stopped is None and not lost:
            lost = "process 1 of a run ended without a report"
        said = ending(log) if final is not None else Ending("unknown")
        if said.kind == "no_program" and said.message.startswith(f"execve('{_SHELL[0]}')"):
            said = Ending("not_started", message=f"the root has no shell: {said.message}")
        flooded = any(stream.over for stream in streams)
        verdict = decide(Evidence(said, counters, stopped, flooded, full, lost), self._limits)
        out, err = streams
        return Result(
            outcome=verdict.outcome, exit_code=verdict.exit_code, signal=verdict.signal, detail=verdict.detail,
            stdout=bytes(out.kept), stderr=bytes(err.kept),
            stdout_truncated=out.truncated, stderr_truncated=err.truncated,
            usage=Usage(self._wall_s, counters.cpu_s, counters.memory_peak_bytes, counters.processes_peak, out.seen, err.seen),
            left_behind=final.left if final is not None else 0,
            artifacts=artifacts,
        )  # fmt: skip

    def _argv(self) -> list[str]:
        command, limits = self._command, self._limits
        weak = isinstance(self._group, NoGroup)
        jail = Jail(
            root=self._site.root, uid=self._site.uid, limits=limits, work=self._places[WORK],
            tmp=self._places["/tmp"], shm=self._places["/dev/shm"], proc=PROC,
            environment={**ENVIRONMENT, **(door_environment() if self._site.network else {}), **command.environment},
            own_network=self._site.network is None, cwd=command.cwd, seccomp=self._means.seccomp,
            log_descriptor=LOG_DESCRIPTOR, niceness=os.getpriority(os.PRIO_PROCESS, 0),
            address_space_mb=address_space_mb(limits) if weak else 0,
            user_processes=limits.processes if weak else 0,
        )  # fmt: skip
        bare = "/" not in command.argv[0]
        return command_line(self._means.nsjail, jail, (*(_SHELL if bare else ()), *command.argv))

    def _look(self, look: Look) -> None:
        if isinstance(self._group, NoGroup):
            self._group.take(look, self._in_tmpfs)
            if self._asking is None or self._asking.done():
                self._asking = asyncio.ensure_future(self._ask_space())

    async def _ask_space(self) -> None:
        with contextlib.suppress(SandboxFault):
            self._in_tmpfs = sum(space.used for space in await self._keeper.space(*self._own.values()))

    async def _full(self) -> str:
        """What this run filled: a place, by its bytes or its inodes, or a file that could not grow."""
        places = list(self._places.items())
        spaces = await self._keeper.space(*(place for _, place in places))
        # A session's workspace may have been full before: that is no reason for this command's end.
        grown = [
            (path, place, space)
            for (path, place), space in zip(places, spaces, strict=True)
            if self._before is None or path != WORK or space.used > self._before.used
        ]
        for path, _, space in grown:
            if space.full:
                return path
        for path, place, space in grown:
            # Python and others ignore SIGXFSZ, and see EFBIG: only the file itself tells.
            if space.used >= self._limits.file_mb * MIB and await self._holds_full_file(place):
                return f"a file in {path}"
        return ""

    async def _holds_full_file(self, place: str) -> bool:
        folder = await self._keeper.open(place)
        try:
            entries = await asyncio.to_thread(listing, folder)
        except WorkspaceRefusal:
            return False
        finally:
            os.close(folder)
        return any(entry.kind == "file" and entry.size >= self._limits.file_mb * MIB for entry in entries)

    async def _collect(self) -> dict[str, bytes]:
        """Plain files only, no link followed; together no more than the disk quota, so a hundred names of one large
        file cost what one costs."""
        if not self._command.collect:
            return {}
        folder = await self._keeper.open(self._places[WORK])
        try:
            return await asyncio.to_thread(self._read_all, folder)
        finally:
            os.close(folder)

    def _read_all(self, folder: int) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        left = self._limits.disk_mb * MIB
        for path in self._command.collect:
            with contextlib.suppress(WorkspaceRefusal):
                contents = read_file(folder, str(PurePosixPath(path)), min(left, self._limits.file_mb * MIB))
                left -= len(contents)
                found[path] = contents
        return found

    async def _remove(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
        unmounts = [("unmount", place) for place in self._own.values()]
        try:
            await self._keeper.do(*unmounts, ("remove", self._base))
        except SandboxFault:
            # Not all was made; or the keeper is gone, and its mounts with it.
            for step in (*unmounts, ("remove", self._base)):
                with contextlib.suppress(SandboxFault):
                    await self._keeper.do(step)
        if self._group is not None:
            await self._group.remove()


async def nobody_of(uid: int) -> None:
    """Returns once this user has no process any more. Raises `SandboxFault` where it keeps one."""
    for _ in range(_GONE_TRIES):
        if not any(_owner(path) == uid for path in Path("/proc").iterdir() if path.name.isdigit()):
            return
        await asyncio.sleep(_GONE_PAUSE_S)
    raise SandboxFault(f"processes of uid {uid} outlive their keeper: see `ps -u {uid}`")


def _owner(path: Path) -> int:
    with contextlib.suppress(OSError):
        return path.stat().st_uid
    return -1


def _pipes() -> tuple[list[int], list[int]]:
    """The program's ends and ours: its input, its two streams, nsjail's log, the report. Raises `SandboxFault`."""
    theirs, ours = [], []
    try:
        for number in range(5):
            read, write = os.pipe2(os.O_CLOEXEC)
            theirs.append(write if number else read)
            ours.append(read if number else write)
    except OSError as error:
        _close((*theirs, *ours))
        raise SandboxFault(f"no pipe for a run: {error.strerror}; raise the limit of open files") from error
    # Process 1 must never wait for us.
    os.set_blocking(theirs[4], False)
    return theirs, ours


def _close(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _nothing() -> None:
    """A log has no limit: of a long one the end is kept."""
