"""The words between the one who measures and a side: a line "step" asks for a step, a line of JSON answers.

Nothing but the standard library is imported, so an interpreter that does not have this project can run it too.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO


@dataclass
class Line:
    """The side's end. Libraries print what they like: what they print goes to standard error."""

    out: TextIO = field(init=False)
    _wall: float = 0.0
    _cpu: float = 0.0

    def __post_init__(self) -> None:
        self.out = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)

    def say(self, **what: Any) -> None:
        print(json.dumps(what), file=self.out, flush=True)

    def asked(self) -> bool:
        """Waits for the next word; False when nobody asks any more."""
        return sys.stdin.readline().strip() == "step"

    def begin(self) -> None:
        # Linux forgets the peak so far: loading the weights has one too.
        Path("/proc/self/clear_refs").write_text("5")
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def end(self, norm: float) -> None:
        self.say(
            seconds=time.perf_counter() - self._wall,
            cpu_seconds=time.process_time() - self._cpu,
            gradient_norm=norm,
            peak_mib=_peak_mib(),
        )


def _peak_mib() -> float:
    """Of resident memory, since it was last forgotten."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024
