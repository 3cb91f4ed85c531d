"""One running check.

Invariant: it is watched from its first moment to its end, whether or not anybody waits for it, and it has one result.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from dataclasses import dataclass
from math import ceil

from shared.errors import ConfigError
from shared.sandbox.cgroups.base import Counters
from shared.sandbox.cgroups.none import NoGroup
from shared.sandbox.faults import SandboxFault
from shared.sandbox.limits import Limits
from shared.sandbox.nsjail_log import Ending
from shared.sandbox.outcome import Outcome, Result, Usage
from shared.sandbox.outcome_rules import NOTHING_COUNTED, Evidence, decide
from shared.sandbox.prewarmed.channel import Channel
from shared.sandbox.prewarmed.leash import PIECE, Report
from shared.sandbox.prewarmed.pool import Member, Pool
from shared.sandbox.spent import count
from shared.sandbox.streams import Drain, Feed
from shared.sandbox.watch import LONGEST_LOOK_S, LOOK_S, Watch

MOST_ARGUMENTS = PIECE


@dataclass(frozen=True, slots=True)
class Check:
    """A Python module's text, run as `__main__` in a fresh fork.

    `channel`: descriptor 3 carries frames (`import temper_channel` in there). `imports`: packages of
    `sandbox.python_packages` that are imported before; only a matter of speed, each combination has its own fork
    server. `name`: of the program in its own tracebacks and in `sys.argv`, before `arguments`. Raises `ConfigError`
    where name and arguments are more than a job can carry.
    """

    source: str | bytes
    channel: bool = False
    imports: tuple[str, ...] = ()
    stdin: bytes = b""
    name: str = "check.py"
    arguments: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(json.dumps([self.name, *self.arguments])) > MOST_ARGUMENTS:
            raise ConfigError(
                f"the arguments of a check are over {MOST_ARGUMENTS} bytes: send them on its input"
            )


class Child:
    """Made by `Prewarmed.open`; frames over its channel, and its result."""

    def __init__(self, pool: Pool, member: Member, limits: Limits, channel: Channel | None) -> None:
        self._pool = pool
        self._member = member
        self._limits = limits
        self._channel = channel
        self._watching: asyncio.Future[Result] | None = None

    async def start(self, check: Check) -> None:
        """Hands the job over; from then on it is watched, and ended with its member. Raises `SandboxFault` where it
        was not handed over; the member is the caller's then."""
        member = self._member
        theirs, ours = _pipes(member.server.outside(member.place))
        # What is no text is no program either, as Python will say.
        source = (
            check.source.encode(errors="surrogatepass") if isinstance(check.source, str) else check.source
        )
        passed = [*theirs, *([self._channel.descriptor] if self._channel else [])]
        self._watch = Watch(
            self._limits, self._look, processes=member.group.processes,
            longest_look_s=LOOK_S if isinstance(member.group, NoGroup) else LONGEST_LOOK_S,
        )  # fmt: skip
        cap = self._limits.output_kb << 10
        self._feed = Feed(ours[0], check.stdin)
        self._out, self._err = (Drain(end, cap, self._watch.flooded) for end in ours[1:])
        try:
            arguments = (check.name, *check.arguments)
            await member.leash.give(arguments, source, ceil(self._limits.cpu_s) + 1, passed)
        finally:
            for descriptor in theirs:
                os.close(descriptor)
            if self._channel is not None:
                self._channel.passed()
            self._watching = asyncio.ensure_future(self._until_over())

    @property
    def started(self) -> bool:
        return self._watching is not None

    @property
    def cpu_s(self) -> float:
        """Processor time of the running check until now."""
        return self._member.group.counters().cpu_s

    async def send(self, frame: bytes) -> bool:
        """False once the check reads no more. Raises `ValueError` for a frame over the limit."""
        return await self._its_channel().send(frame)

    async def receive(self) -> bytes | None:
        """The next frame, or None at the end; ends by the limits of the check at the latest."""
        return await self._its_channel().receive()

    async def finish(self) -> Result:
        """Closes our side of the channel and waits for the end. Never raises for what the check did."""
        assert self._watching is not None
        if self._channel is not None:
            self._channel.finish()
        return await asyncio.shield(self._watching)

    async def kill(self) -> Result:
        """Ends it now: `Outcome.KILLED`, unless it ended before."""
        assert self._watching is not None
        self._watch.stop()
        return await asyncio.shield(self._watching)

    async def leave(self) -> None:
        """Ends it if it still runs, also when this call is cancelled; frames that were not received are gone."""
        assert self._watching is not None
        self._watch.stop()
        while not self._watching.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([self._watching])
        if self._channel is not None:
            self._channel.close()
        self._watching.result()

    def _look(self) -> Counters:
        """Nothing before the first interval is over: most checks end in it, and to read the files costs a tenth of
        what a check does."""
        return self._member.group.counters() if self._watch.seconds >= LOOK_S else NOTHING_COUNTED

    def _its_channel(self) -> Channel:
        if self._channel is None:
            raise ValueError("this check was opened without a channel")
        return self._channel

    async def _until_over(self) -> Result:
        member, report, lost = self._member, None, ""
        stopped: Outcome | None = None
        counters = NOTHING_COUNTED
        member.leash.report.add_done_callback(lambda _: self._watch.ended())
        try:
            stopped = await self._watch.wait()
            member.leash.let_go()
            report = await member.leash.report
            wall = self._watch.seconds
            if isinstance(member.group, NoGroup):
                member.group.end(report.cpu_s)
            counters = member.group.counters()
        except SandboxFault as fault:
            wall, lost = self._watch.seconds, str(fault)
        finally:
            for stream in (self._out, self._err):
                stream.finish()
            self._feed.close()
            await self._pool.end(member)
        return self._judge(report, counters, stopped, lost, wall)

    def _judge(
        self, report: Report | None, counters: Counters, stopped: Outcome | None, lost: str, wall: float
    ) -> Result:
        code = os.waitstatus_to_exitcode(report.status) if report is not None else 0
        said = Ending("exited", code) if code >= 0 else Ending("signalled", -code)
        out, err = self._out, self._err
        flooded = out.over or err.over
        full = report.full if report is not None else ""
        verdict = decide(Evidence(said, counters, stopped, flooded, full, lost), self._limits)
        problem = self._channel.problem if self._channel is not None else ""
        return Result(
            verdict.outcome, exit_code=verdict.exit_code, signal=verdict.signal,
            detail="; ".join(text for text in (verdict.detail, problem) if text),
            stdout=bytes(out.kept), stderr=bytes(err.kept),
            stdout_truncated=out.truncated, stderr_truncated=err.truncated,
            usage=count(Usage(wall, counters.cpu_s, counters.memory_peak_bytes, counters.processes_peak, out.seen, err.seen, self._watch.waited)),
            left_behind=report.left if report is not None else 0,
        )  # fmt: skip


def _pipes(user: int) -> tuple[list[int], list[int]]:
    """The check's ends and ours, of its input and its two streams. They are `user`'s, who may open them by name then
    (/dev/stdin). Raises `SandboxFault`."""
    theirs: list[int] = []
    ours: list[int] = []
    try:
        for number in range(3):
            read, write = os.pipe2(os.O_CLOEXEC)
            theirs.append(write if number else read)
            ours.append(read if number else write)
            os.fchown(read, user, user)
    except OSError as error:
        for descriptor in (*theirs, *ours):
            os.close(descriptor)
        raise SandboxFault(f"no pipe for a check: {error.strerror}; raise the limit of open files") from error
    return theirs, ours
