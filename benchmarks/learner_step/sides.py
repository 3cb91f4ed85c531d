"""A side's process, and turns between two of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Literal

from benchmarks.learner_step.workloads import Workload

TRL_PYTHON = "TEMPER_BENCH_TRL_PYTHON"
HERE = Path(__file__).parent
Name = Literal["temper", "trl"]


def trl_python() -> str:
    """The interpreter that has TRL; empty where there is none."""
    made = Path(".venv-trl/bin/python").absolute()
    return os.environ.get(TRL_PYTHON, str(made) if made.exists() else "")


@dataclass(frozen=True, slots=True)
class Step:
    seconds: float
    cpu_seconds: float
    gradient_norm: float
    peak_mib: float
    """Of the process so far."""


class Side:
    """One process that has the weights and a batch, and takes a step when asked."""

    def __init__(self, name: Name, process: subprocess.Popen[str], log: Path) -> None:
        self.name = name
        self._process = process
        self._log = log
        self.about = self._hear()

    def step(self) -> Step:
        assert self._process.stdin is not None
        self._process.stdin.write("step\n")
        self._process.stdin.flush()
        return Step(**self._hear())

    def _hear(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        said = self._process.stdout.readline()
        if not said:
            raise SystemExit(f"benchmark: {self.name} ended: {self._log.read_text()[-2000:]}")
        return dict(json.loads(said))


@contextmanager
def side(name: Name, workload: Workload, model: Path, threads: int) -> Iterator[Side]:
    with tempfile.TemporaryDirectory() as folder:
        spec, log = Path(folder) / "spec.json", Path(folder) / "log"
        about = {"model": str(model.absolute()), "threads": threads, "learning_rate": 1e-6}
        spec.write_text(json.dumps({**workload.to_dict(), **about}))
        command = (
            [sys.executable, "-m", "benchmarks.learner_step.ours", str(spec)]
            if name == "temper"
            else [trl_python(), str(HERE / "trl_side.py"), str(spec)]
        )
        with (
            log.open("w") as err,
            subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=err,
                text=True,
                env={**os.environ, "OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"},
            ) as process,
        ):
            try:
                yield Side(name, process, log)
            finally:
                process.kill()


def alternate(
    workload: Workload, model: Path, threads: int, repeats: int, names: Sequence[Name] = ("temper", "trl")
) -> dict[Name, list[Step]]:
    """`repeats` steps of each side in turns, after one that does not count; every other turn the other way round."""
    found: dict[Name, list[Step]] = {name: [] for name in names}
    with (
        side(names[0], workload, model, threads) as first,
        side(names[1], workload, model, threads) as second,
    ):
        for turn in range(repeats + 1):
            for each in (first, second) if turn % 2 == 0 else (second, first):
                taken = each.step()
                if turn or not repeats:
                    found[each.name].append(taken)
    return found


def alone(name: Name, workload: Workload, model: Path, threads: int) -> Step:
    """The second step of a process, with its own peak: from then on the optimizer's moments are there, as in a run.
    A workload that is warm needs no first one."""
    with side(name, workload, model, threads) as only:
        if not workload.warm:
            only.step()
        return only.step()


def median_of(steps: Sequence[Step], what: str) -> float:
    return float(median(getattr(step, what) for step in steps))
