"""What a command did, in the words that the policy reads.

Invariant: a limit that ended the command is named with its value; a fault of ours raises `SandboxFault`.
"""

from __future__ import annotations

from shared.sandbox.faults import SandboxFault
from shared.sandbox.limits import Limits
from shared.sandbox.outcome import Outcome, Result


def told(result: Result, limits: Limits) -> str:
    """Standard output, standard error under its own heading, and how it ended where that was not with 0.

    Raises `SandboxFault` where the result says nothing about the command.
    """
    result.raise_for_infrastructure()
    if result.outcome is Outcome.KILLED:
        raise SandboxFault(f"a command was ended by us: {result.detail or 'its session is over'}")
    out, err = _text(result.stdout), _text(result.stderr)
    parts = [out] if out else []
    if result.stdout_truncated:
        parts.append(f"[output over {limits.output_kb} KiB: the rest was not kept]")
    if err:
        parts.append(f"[stderr]\n{err}" if out else err)
    ended = _how(result, limits)
    if ended:
        parts.append(f"[{ended}]")
    return "\n".join(parts) or "[no output]"


def _text(stream: bytes) -> str:
    return stream.decode("utf-8", "replace").rstrip("\n")


def _how(result: Result, limits: Limits) -> str:
    match result.outcome:
        case Outcome.EXITED:
            return f"exit code {result.exit_code}" if result.exit_code else ""
        case Outcome.SIGNALLED:
            return f"ended by signal {result.signal}"
        case Outcome.WALL_LIMIT:
            return f"ended: over {limits.wall_s:g} s of wall time"
        case Outcome.CPU_LIMIT:
            return f"ended: over {limits.cpu_s:g} s of processor time"
        case Outcome.MEMORY_LIMIT:
            return f"ended: over {limits.memory_mb} MiB of memory"
        case Outcome.PROCESS_LIMIT:
            return f"ended: over {limits.processes} processes"
        case Outcome.OUTPUT_LIMIT:
            return f"ended: it wrote far over {limits.output_kb} KiB"
        case Outcome.DISK_LIMIT:
            return f"ended: over {limits.disk_mb} MiB of files"
    return str(result.outcome)
