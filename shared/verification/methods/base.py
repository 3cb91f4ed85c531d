"""What every check method keeps.

Invariant: the same request gives the same judgement: reasons hold no time, address, path or expected value. A fault of
ours is raised (`SandboxFault`, `VerificationFault`), never a judgement; the policy's own crash, hang and excess are
its failures, each under its own reason.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel, ConfigDict

from shared.sandbox.faults import SandboxFault
from shared.sandbox.outcome import Outcome, Result
from shared.verification.detectors.flags import Flag
from shared.verification.detectors.known import Example
from shared.verification.detectors.output import flags_of_output
from shared.verification.judgement import Judgement

MAX_READ_BYTES = 1 << 16
"""Of a frame from a process that runs the policy's code, that we ourselves decode: 64 KiB become some 2 MB at most."""
MAX_SOURCE_CHARS = 400_000
"""Of one program or query of the policy's: longer is no attempt."""
# A program that spins reaches its CPU limit on a quiet machine and its wall limit on a busy one: one reason for both.
_LIMITS = {
    Outcome.WALL_LIMIT: "its time limit",
    Outcome.CPU_LIMIT: "its time limit",
    Outcome.MEMORY_LIMIT: "its memory limit",
    Outcome.PROCESS_LIMIT: "its limit of processes",
    Outcome.OUTPUT_LIMIT: "its output limit",
    Outcome.DISK_LIMIT: "its disk limit",
}

_CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGFPE, signal.SIGBUS, signal.SIGILL)


class Request(BaseModel):
    """One attempt and what it is checked against. Unknown keys are ignored, so that a data set's own may stay."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class VisibleExample(BaseModel):
    """An input that the policy could see, with its output: a table of them is hard-coding, not a solution."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    arguments: tuple[Any, ...]
    expected: Any

    def plain(self) -> Example:
        return Example(self.arguments, self.expected)


def ended_early(result: Result, when: str, *, who: str = "the candidate") -> Judgement:
    """The failure of a policy's process that ended before it had answered. Raises `SandboxFault` where that is ours."""
    result.raise_for_infrastructure()
    if result.outcome is Outcome.KILLED:
        raise SandboxFault(f"{who}'s process was killed by us {when}")
    flags = flags_of_result(result)
    if result.outcome in _LIMITS:
        judged = Judgement.failed(f"{who} reached {_LIMITS[result.outcome]} {when}")
        return judged.flagged({*flags, Flag.LIMIT_REACHED})
    if result.outcome is Outcome.SIGNALLED:
        return Judgement.failed(f"{who} was ended by signal {result.signal} {when}").flagged(flags)
    judged = Judgement.failed(f"{who} ended its own process with exit code {result.exit_code} {when}")
    return judged.flagged({*flags, Flag.EXIT_IN_CANDIDATE})


def reader_ended(result: Result, what: str) -> Judgement:
    """As `ended_early`, for a process that ran no code of the policy's but read its data: to crash it is the data's
    doing, to leave it without a word is ours."""
    result.raise_for_infrastructure()
    if result.outcome in _LIMITS:
        judged = Judgement.failed(f"{what} took the process that reads it to {_LIMITS[result.outcome]}")
        return judged.flagged([Flag.LIMIT_REACHED])
    if result.outcome is Outcome.SIGNALLED and result.signal in _CRASHES:
        return Judgement.failed(f"{what} crashed the process that reads it (signal {result.signal})")
    lines = result.stderr[-2000:].decode("utf-8", "backslashreplace").strip().splitlines()
    said = lines[-1][:200] if lines else "it said nothing"
    raise SandboxFault(
        f"a process of ours ended early ({result.outcome}, {result.exit_code or result.signal}): {said}"
    )


def flags_of_result(result: Result) -> set[Flag]:
    """What a finished process left behind and printed."""
    found: set[Flag] = set(flags_of_output(result.stdout, result.stderr))
    if result.left_behind:
        found.add(Flag.PROCESS_LEFT_BEHIND)
    return found


def limit_words(outcome: Outcome) -> str | None:
    """How a limit is called in a reason; None for what is no limit."""
    return _LIMITS.get(outcome)


def too_long(source: str, what: str) -> Judgement | None:
    """The failure of a text that nobody reads; None where it is short enough."""
    if len(source) <= MAX_SOURCE_CHARS:
        return None
    return Judgement.failed(f"the {what} has {len(source)} characters: the limit is {MAX_SOURCE_CHARS}")


def examples(visible: Iterable[VisibleExample]) -> tuple[Example, ...]:
    return tuple(item.plain() for item in visible)
