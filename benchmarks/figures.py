"""One measured figure, and the processes that figures are measured on."""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

TEMPER = [sys.executable, "-P", "-m", "temper"]


def figure(name: str, value: float, unit: str, **about: Any) -> dict[str, Any]:
    """`about` says what was measured and on what, so that a line can be read alone."""
    return {
        "figure": name,
        "unit": unit,
        "value": value,
        **about,
        "cores": os.cpu_count(),
        "machine": platform.machine(),
    }


def show(line: dict[str, Any]) -> None:
    print(json.dumps(line), flush=True)  # noqa: T201


@contextmanager
def service(name: str, config: Path, log: Path, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """One `temper` service process, ended with the block."""
    with log.open("ab") as out:
        process = subprocess.Popen(
            [*TEMPER, name, "--config", str(config)],
            stdout=out,
            stderr=out,
            env={**os.environ, **environment},
        )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGCONT)
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def resident_mib(pid: int) -> float:
    """Proportional set size of a process and its children, MiB (`smaps_rollup`, Linux)."""
    total = 0
    for member in [pid, *children(pid)]:
        try:
            lines = Path(f"/proc/{member}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total / 1024


def children(pid: int) -> list[int]:
    found = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in path.read_text().split():
            found += [int(child), *children(int(child))]
    return found
