"""From what was counted and seen to one outcome.

Invariant: the same evidence gives the same outcome and the same words: no times, addresses or paths in them. The order
is fixed. Ours comes first, then what was asked for, then the limits in the order in which one brings on the next (a
group without memory also misses its deadline; a fork bomb also burns CPU), and how the program ended last.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass

from shared.sandbox.cgroups.base import Counters
from shared.sandbox.limits import Limits
from shared.sandbox.nsjail_log import Ending
from shared.sandbox.outcome import Outcome

NOTHING_COUNTED = Counters()


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that is known of a run that is over."""

    ending: Ending
    counters: Counters = NOTHING_COUNTED
    stopped: Outcome | None = None
    """Why we ended it; None where it ended by itself."""
    flooded: bool = False
    """A stream was written past `streams.OVER` times its cap."""
    full: str = ""
    """The place that is full at the end, as the program sees it: its space, its inodes, or a file at `file_mb`."""
    lost: str = ""
    """Why we cannot say anything about the program."""


@dataclass(frozen=True, slots=True)
class Verdict:
    outcome: Outcome
    exit_code: int | None = None
    signal: int | None = None
    detail: str = ""


def decide(evidence: Evidence, limits: Limits) -> Verdict:
    """The first rule that applies."""
    ending, counters = evidence.ending, evidence.counters
    well = evidence.stopped is None and ending.kind == "exited" and ending.number == 0
    by = ending.number if evidence.stopped is None and ending.kind == "signalled" else 0
    if evidence.lost:
        return Verdict(Outcome.INFRASTRUCTURE, detail=evidence.lost)
    if evidence.stopped is Outcome.KILLED:
        return Verdict(Outcome.KILLED, detail="ended on request")
    if counters.memory_kills:
        return Verdict(Outcome.MEMORY_LIMIT, detail=f"over {limits.memory_mb} MiB of memory")
    if evidence.flooded:
        return Verdict(Outcome.OUTPUT_LIMIT, detail=f"over four times {limits.output_kb} KiB of output")
    if counters.process_refusals and not well:
        return Verdict(Outcome.PROCESS_LIMIT, detail=f"over {limits.processes} processes")
    if evidence.stopped is Outcome.CPU_LIMIT or counters.cpu_s >= limits.cpu_s or by == signal.SIGXCPU:
        return Verdict(Outcome.CPU_LIMIT, detail=f"over {limits.cpu_s:g} s of CPU time")
    if evidence.stopped is Outcome.WALL_LIMIT:
        return Verdict(Outcome.WALL_LIMIT, detail=f"over {limits.wall_s:g} s")
    if by == signal.SIGXFSZ:
        return Verdict(Outcome.DISK_LIMIT, detail=f"a file over {limits.file_mb} MiB")
    if evidence.full and not well:
        return Verdict(Outcome.DISK_LIMIT, detail=f"{evidence.full} is full")
    return _end(ending)


def _end(ending: Ending) -> Verdict:
    if ending.kind == "exited":
        return Verdict(Outcome.EXITED, exit_code=ending.number)
    if ending.kind == "signalled":
        return Verdict(Outcome.SIGNALLED, signal=ending.number, detail=_signal_name(ending.number))
    if ending.kind == "no_program":
        return Verdict(Outcome.EXITED, exit_code=ending.number, detail=ending.message)
    if ending.kind == "not_started":
        return Verdict(
            Outcome.INFRASTRUCTURE,
            detail=f"the jail was not made: {ending.message}; `temper sandbox doctor` says what is missing",
        )
    return Verdict(
        Outcome.INFRASTRUCTURE,
        detail=f"nsjail did not say how the program ended: {ending.message or 'nothing'}",
    )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
