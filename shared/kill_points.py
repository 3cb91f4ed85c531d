"""Named points at which a test kills a process: what a fault at the worst moment leaves behind.

Invariant: nothing happens unless `TEMPER_KILL_POINT` names the point, and then once: `<point>:<number>:<file>` kills
the process with SIGKILL when it reaches that point with that number, if `<file>` does not exist yet; the file is made
first, so that the process that is started in its place goes on. Unset, a point costs one look into the environment
(under a microsecond).
"""

from __future__ import annotations

import os
import signal

VARIABLE = "TEMPER_KILL_POINT"


def reached(point: str, number: int = 0) -> None:
    """`number`: of the step. Does not return where it kills."""
    armed = os.environ.get(VARIABLE)
    if not armed:
        return
    name, _, rest = armed.partition(":")
    wanted, _, file = rest.partition(":")
    if name != point or wanted != str(number):
        return
    try:
        os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)
