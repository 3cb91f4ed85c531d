"""Reading what a run's process 1 says (`keeper/init.py`).

Invariant: a report that ends without its last line is a run that was ended from outside, never one that ended well.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from shared.sandbox.cgroups.none import Look


@dataclass(frozen=True, slots=True)
class Final:
    """`status`: nsjail's wait status. `left`: processes that still lived then. `cpu_s`: of all that was waited for. `at`:
    when it ended, as `time.monotonic` has it."""

    status: int
    left: int
    cpu_s: float
    at: float


class Report:
    """Reads the pipe `descriptor` to its end; calls `on_look` for each look and `on_end` once."""

    def __init__(self, descriptor: int, on_look: Callable[[Look], None], on_end: Callable[[], None]) -> None:
        self._descriptor = descriptor
        self._on_look = on_look
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._rest = b""
        self.final: Final | None = None
        os.set_blocking(descriptor, False)
        self._loop.add_reader(descriptor, self._read)

    def close(self) -> None:
        if self._descriptor >= 0:
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1

    def finish(self) -> None:
        """What is still in the pipe; then closed."""
        while self._descriptor >= 0 and self._read():
            pass
        self.close()

    def _read(self) -> bool:
        """False when there is nothing more now."""
        try:
            chunk = os.read(self._descriptor, 1 << 16)
        except BlockingIOError:
            return False
        if not chunk:
            self.close()
            self._on_end()
            return False
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            self._take(json.loads(line))
        return True

    def _take(self, body: dict[str, Any]) -> None:
        if "status" in body:
            self.final = Final(body["status"], body["left"], body["cpu"], body["at"])
        else:
            self._on_look(Look(**body))
