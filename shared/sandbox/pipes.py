"""The pipes of one run.

Invariant: every end is closed once: the program's as soon as it is started, ours by whoever reads or writes it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import NamedTuple

from shared.sandbox.faults import SandboxFault

_OF_PROGRAM = 3


class Ends(NamedTuple):
    """One end of each: the program's input, its two streams, nsjail's log, the report of process 1."""

    stdin: int
    stdout: int
    stderr: int
    log: int
    report: int


def open_pipes(user: int) -> tuple[Ends, Ends]:
    """The program's ends and ours. Input and streams belong to `user`, so the program may open them by name too
    (/dev/stdin, /dev/stderr). Raises `SandboxFault` where there are no descriptors left."""
    theirs: list[int] = []
    ours: list[int] = []
    try:
        for number in range(len(Ends._fields)):
            read, write = os.pipe2(os.O_CLOEXEC)
            theirs.append(write if number else read)
            ours.append(read if number else write)
            if number < _OF_PROGRAM:
                os.fchown(read, user, user)
    except OSError as error:
        close_all((*theirs, *ours))
        raise SandboxFault(f"no pipe for a run: {error.strerror}; raise the limit of open files") from error
    # Process 1 must never wait for us.
    os.set_blocking(theirs[-1], False)
    return Ends(*theirs), Ends(*ours)


def close_all(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
