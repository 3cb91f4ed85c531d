"""A `temper up` under test: started, watched by what it prints, its processes killed by name."""

from __future__ import annotations

import asyncio
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from shared.bus.reader import LogReader
from shared.bus.topics import TopicNames
from shared.contracts import Message
from shared.settings import Settings
from temper.audit.place import connected, run_settings

TEMPER = [sys.executable, "-P", "-m", "temper"]
STEP = re.compile(r"\bstep +(\d+)/")

COMMON = """
[run]
name = "small"
folder = "{folder}"
[model]
path = "{model}"
[bus]
partitions = 2
session_timeout_ms = 6000
drain_s = 5.0
[scheduler]
group_deadline_s = 20.0
stall_s = 120.0
[telemetry]
heartbeat_s = 0.5
"""
SMALL = """
[[domains]]
name = "arithmetic"
max_tokens = 4
difficulty = {{ digits = 1, operations = ["+"] }}
[[stages]]
kind = "sft"
steps = {sft_steps}
groups_per_step = 16
learning_rate = 3e-3
[[stages]]
kind = "rl"
steps = {rl_steps}
groups_per_step = 4
group_size = 4
oversample = {oversample}
learning_rate = 1e-4
[evaluation]
instances_per_domain = 8
[rollout]
processes = {rollouts}
"""


class LocalRun:
    """`temper up` as a subprocess. Use as a context manager: whatever is left is killed at its end. `about`: its domains,
    stages and other tables, in the place of a small run's that the numbers below are of."""

    def __init__(
        self,
        tmp_path: Path,
        model: Path,
        about: str = "",
        *,
        sft_steps: int = 4,
        rl_steps: int = 6,
        rollouts: int = 1,
        oversample: int = 0,
    ) -> None:
        self.folder = tmp_path / "runs" / "small"
        self.config = tmp_path / "small.toml"
        small = SMALL.format(sft_steps=sft_steps, rl_steps=rl_steps, rollouts=rollouts, oversample=oversample)
        self.config.write_text(COMMON.format(folder=tmp_path / "runs", model=model) + (about or small))
        self.lines: list[str] = []
        self._news: queue.Queue[str | None] = queue.Queue()
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> LocalRun:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        if error is not None:
            print("\n".join(self.lines[-40:]))
            for log in sorted(self.folder.glob("logs/*.log")):
                print(f"--- {log.name}\n{log.read_text(errors='replace')[-1500:]}")

    def start(self, **environment: str) -> LocalRun:
        self._process = subprocess.Popen(
            [*TEMPER, "up", str(self.config)], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment}, start_new_session=True,
        )  # fmt: skip
        threading.Thread(target=self._read, args=(self._process,), daemon=True).start()
        return self

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stderr is not None
        for line in process.stderr:
            self.lines.append(line.rstrip())
            self._news.put(line)
        self._news.put(None)

    def wait_for_step(self, number: int, timeout_s: float = 120) -> None:
        """Returns when a step at least this high was announced; fails when the run ends before."""
        deadline = time.monotonic() + timeout_s
        while not any(int(m.group(1)) >= number for line in self.lines for m in STEP.finditer(line)):
            news = self._news.get(timeout=max(0.1, deadline - time.monotonic()))
            assert news is not None, f"the run ended before step {number}"

    def pid_of(self, name: str) -> int:
        return int((self.folder / "logs" / f"{name}.pid").read_text())

    def kill(self, name: str) -> None:
        os.kill(self.pid_of(name), signal.SIGKILL)

    def interrupt(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGINT)

    def kill_supervisor(self) -> None:
        assert self._process is not None
        self._process.kill()

    def wait(self, timeout_s: float = 240) -> int:
        assert self._process is not None
        return self._process.wait(timeout_s)


def told(run: LocalRun) -> list[Message]:
    """What a run that is over said, topic by topic: control, steps, policies, rewards, attempts."""

    async def read(settings: Settings) -> list[Message]:
        names = TopicNames(settings.bus.namespace)
        attempts = [
            names.trajectories(workload.name, priority)
            for workload in settings.workloads
            for priority in workload.priorities
        ]
        topics = [names.control, names.steps, names.policies, names.rewards, *attempts]
        reader = LogReader(settings, "scheduler", topics)
        seen = [delivery.message async for delivery in reader.to_end()]
        await reader.close()
        return seen

    with connected(run_settings(run.folder)) as settings:
        return asyncio.run(read(settings))


M = TypeVar("M", bound=Message)


def of(seen: Sequence[Message], kind: type[M]) -> list[M]:
    return [message for message in seen if isinstance(message, kind)]


def audited(run: LocalRun, *words: str, **environment: str) -> str:
    """What the audit prints of a run without a finding."""
    result = temper("audit", str(run.folder), *words, **environment)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def temper(
    *arguments: str, timeout_s: float = 120, cwd: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs one `temper` command to its end."""
    return subprocess.run(
        [*TEMPER, *arguments], capture_output=True, text=True, timeout=timeout_s, check=False, cwd=cwd,
        env={**os.environ, **environment},
    )  # fmt: skip
