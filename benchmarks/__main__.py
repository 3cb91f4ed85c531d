"""`make bench`: every figure, one JSON line each."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import (
    agent,
    asynchrony,
    asynchrony_real,
    bus,
    checkpoints,
    loop,
    memory,
    publishing,
    sandbox,
    serving,
    turns,
)
from benchmarks.curves import measure as curves
from benchmarks.figures import TEMPER, figure, show
from benchmarks.learner_step import figures as learner_step

TINY, SMALL, DEMO = Path("models/tiny"), Path("models/smollm2"), Path("runs/demo/summary.json")


def face() -> Iterator[dict[str, Any]]:
    """How long `temper --help` takes: the best of five whole processes."""
    times = []
    for _ in range(5):
        started = time.perf_counter()
        subprocess.run([*TEMPER, "--help"], check=True, capture_output=True)
        times.append(time.perf_counter() - started)
    yield figure("face.help", round(min(times), 3), "s")


def demo() -> Iterator[dict[str, Any]]:
    """What the last demo on this machine showed; nothing where none was run."""
    if not DEMO.exists():
        return
    summary = json.loads(DEMO.read_text())
    first, last = (summary["evaluations"][i]["overall"]["rate"] for i in (0, -1))
    seconds: dict[str, float] = {}
    for stage in summary["stages"]:
        for name, value in stage["seconds"].items():
            seconds[name] = seconds.get(name, 0.0) + value
    about = {"wall_s": round(summary["wall_seconds"]), "from": round(first, 3), "to": round(last, 3)}
    yield figure(
        "demo.learner_wait_share", round(seconds["wait"] / seconds["total"], 3), "of wall time", **about
    )
    yield figure(
        "demo.effective_throughput", round(summary["effective_throughput"], 3), "valid trajectories/s"
    )


def main() -> int:
    for measured in (
        face(),
        _bus(),
        loop.measure(TINY),
        turns.measure(TINY),
        agent.measure(TINY),
        asynchrony.measure(),
        asynchrony_real.measure(TINY),
        curves.measure(TINY),
        memory.measure(TINY),
        publishing.measure(SMALL),
        checkpoints.measure(SMALL),
        serving.measure(SMALL),
        sandbox.measure(),
        learner_step.measure(SMALL),
        demo(),
    ):
        for line in measured:
            show(line)
    return 0


def _bus() -> Iterator[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder, bus.dev_broker(Path(folder)) as bootstrap:
        for line in bus.measure(bootstrap, 20_000, 1024, 3, Path(folder)):
            yield figure(line.pop("figure"), line.pop("value"), line.pop("unit"), **line)


if __name__ == "__main__":
    sys.exit(main())
