"""One run, from its first mount to the last trace of it.

Invariant: whatever happens, in this order: everything of the run is killed and waited for, then counted, then what it
wrote is read, then its mounts, files and group are removed. Nothing is judged while something of it can still move.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from dataclasses import dataclass

from shared.sandbox.cgroups.base import Cgroups, Counters, Group
from shared.sandbox.cgroups.none import LOOK_S, Look, NoGroup, address_space_mb
from shared.sandbox.command import WORK, Command
from shared.sandbox.faults import SandboxFault
from shared.sandbox.keeper.client import Init, KeeperClient, KeptProcess
from shared.sandbox.keeper.mounts import PROC
from shared.sandbox.limits import Limits
from shared.sandbox.network.allowed import Allowed
from shared.sandbox.network.proxy import PORT, Proxy
from shared.sandbox.network.proxy import environment as door_environment
from shared.sandbox.nsjail import Jail, command_line
from shared.sandbox.nsjail_log import NOT_EXECUTABLE, Ending, ending
from shared.sandbox.outcome import Outcome, Result, Usage
from shared.sandbox.outcome_rules import Evidence, decide
from shared.sandbox.pipes import Ends, close_all, open_pipes
from shared.sandbox.places import SHM, TMP, Places
from shared.sandbox.report import Report
from shared.sandbox.spent import count
from shared.sandbox.streams import Drain, Feed
from shared.sandbox.uids import nobody_of
from shared.sandbox.watch import LONGEST_LOOK_S, Watch

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
    home: str = ""
    """`Command.home`; there is a network then."""


class OneRun:
    """`await run()` once. `stop` ends it as `Outcome.KILLED`."""

    def __init__(self, means: Means, site: Site, command: Command, limits: Limits) -> None:
        self._means = means
        self._keeper = means.keeper
        self._site = site
        self._command = command
        self._limits = limits
        base = f"{means.keeper.folder}/runs/{site.name}"
        self._places = Places(means.keeper, base, site.uid, limits, site.work)
        self._group: Group | None = None
        self._watch: Watch | None = None
        self._stopped_early = False
        self._wall_s = self._waited_s = 0.0
        self._in_tmpfs = 0
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
            await self._places.make(self._command.files)
            return await self._start()
        except SandboxFault as fault:
            return Result(Outcome.INFRASTRUCTURE, detail=str(fault))
        finally:
            await self._remove()

    async def _start(self) -> Result:
        assert self._group is not None
        self._watch = watch = Watch(
            self._limits, self._group.counters, processes=self._group.processes,
            longest_look_s=LOOK_S if isinstance(self._group, NoGroup) else LONGEST_LOOK_S,
        )  # fmt: skip
        if self._stopped_early:
            watch.stop()
        theirs, ours = open_pipes(self._site.uid)
        try:
            process = await self._spawn(theirs, self._group)
        except BaseException:
            close_all(ours)
            raise
        finally:
            close_all(theirs)
        # The keeper starts one process after the other: with many runs at once, waiting for it is no time of theirs.
        watch.restart()
        cap = self._limits.output_kb << 10
        feed = Feed(ours.stdin, self._command.stdin)
        streams = Drain(ours.stdout, cap, watch.flooded), Drain(ours.stderr, cap, watch.flooded)
        log = Drain(ours.log, LOG_CAP, _nothing, tail=True)
        report = Report(
            ours.report, self._look, lambda: watch.ended(report.final.at if report.final else None)
        )
        try:
            stopped, lost = await self._until_over(watch, process)
        finally:
            for one in (*streams, log, report):
                one.finish()
            feed.close()
        return await self._judge(streams, bytes(log.kept), report, stopped, lost)

    async def _spawn(self, theirs: Ends, group: Group) -> KeptProcess:
        look_s = LOOK_S if isinstance(group, NoGroup) else 0.0
        return await self._keeper.spawn(
            self._argv(), {}, {0: theirs.stdin, 1: theirs.stdout, 2: theirs.stderr, LOG_DESCRIPTOR: theirs.log},
            group.joins, init=Init(theirs.report, look_s, tuple(self._places.outside.values())),
            door=PORT if self._site.network else 0,
        )  # fmt: skip

    async def _serve_door(self, process: KeptProcess) -> Proxy | None:
        if process.door is None or self._site.network is None:
            return None
        proxy = Proxy(process.door, self._site.network, home=self._site.home)
        await proxy.start()
        return proxy

    async def _until_over(self, watch: Watch, process: KeptProcess) -> tuple[Outcome | None, str]:
        """Why we ended it, and why it is lost. When this ends, however it ends, nothing of the run is alive."""
        stopped, lost, proxy = None, "", None
        try:
            proxy = await self._serve_door(process)
            stopped = await watch.wait()
        except (SandboxFault, OSError) as fault:
            lost = str(fault)
        finally:
            self._wall_s, self._waited_s = watch.seconds, watch.waited
            lost = await self._kill(process) or lost
            if proxy is not None:
                await proxy.close()
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
            full = await self._places.filled()
            artifacts = await self._places.collect(self._command.collect)
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
            usage=count(Usage(self._wall_s, counters.cpu_s, counters.memory_peak_bytes, counters.processes_peak, out.seen, err.seen, self._waited_s)),
            left_behind=final.left if final is not None else 0,
            artifacts=artifacts,
        )  # fmt: skip

    def _argv(self) -> list[str]:
        command, limits, places = self._command, self._limits, self._places.outside
        weak = isinstance(self._group, NoGroup)
        jail = Jail(
            root=self._site.root, uid=self._site.uid, limits=limits, work=places[WORK], tmp=places[TMP],
            shm=places[SHM], proc=PROC,
            environment={**ENVIRONMENT, **self._door_environment(), **command.environment},
            own_network=self._site.network is None, cwd=command.cwd, seccomp=self._means.seccomp,
            log_descriptor=LOG_DESCRIPTOR, niceness=os.getpriority(os.PRIO_PROCESS, 0),
            address_space_mb=address_space_mb(limits) if weak else 0,
            user_processes=limits.processes if weak else 0,
        )  # fmt: skip
        bare = "/" not in command.argv[0]
        return command_line(self._means.nsjail, jail, (*(_SHELL if bare else ()), *command.argv))

    def _door_environment(self) -> dict[str, str]:
        """Nothing of a proxy where there is a home alone: it is a plain server to what runs inside."""
        network = self._site.network
        return door_environment(self._site.home) if network is not None and network.places else {}

    def _look(self, look: Look) -> None:
        if isinstance(self._group, NoGroup):
            self._group.take(look, self._in_tmpfs)
            if self._asking is None or self._asking.done():
                self._asking = asyncio.ensure_future(self._ask_space())

    async def _ask_space(self) -> None:
        with contextlib.suppress(SandboxFault):
            self._in_tmpfs = await self._places.used()

    async def _remove(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
        await self._places.remove()
        if self._group is not None:
            await self._group.remove()


def _nothing() -> None:
    """A log has no limit: of a long one the end is kept."""
