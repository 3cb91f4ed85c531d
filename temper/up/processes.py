"""The processes of a run: started, watched, restarted, stopped.

Invariant: every process started here is gone when `stop` returns, and none runs twice at once.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from shared.errors import TemperError
from temper.up.notes import note
from temper.up.restart import Exit, GiveUp, RestartPolicy

DEFAULTS = {
    # Two processes that spin at their barriers take each other's cores: on two cores a run of the tiny model took
    # 240 s with OpenMP's active waiting and 69 s without.
    "OMP_WAIT_POLICY": "PASSIVE",
    "TOKENIZERS_PARALLELISM": "false",
}
"""Set for every process unless the environment says otherwise."""


OURS = "temper: "
"""How the command begins the one line that says why it ends."""
_TAIL_BYTES = 8192


class ProcessFailed(TemperError):
    """A process that cannot be kept alive; ends the run with that process's own exit code."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code if exit_code > 0 else 1


@dataclass
class Watched:
    """One process: its command, its log, how often it was started."""

    name: str
    arguments: list[str]
    log: Path
    policy: RestartPolicy = field(default_factory=RestartPolicy)
    process: asyncio.subprocess.Process | None = None
    starts: int = 0
    exit_code: int | None = None
    worked: bool = False
    """Since its last start it has said that it serves, or has finished something."""
    log_start: int = 0
    """Where in its log the last start begins."""

    @property
    def pid_file(self) -> Path:
        """`logs/<name>.pid`, there while the process runs."""
        return self.log.with_suffix(".pid")

    @property
    def pid(self) -> int:
        return self.process.pid if self.process is not None and self.process.returncode is None else 0


class ProcessTree:
    """Starts `temper` sub-commands and keeps them alive until told otherwise."""

    def __init__(
        self,
        folder: Path,
        environment: dict[str, str],
        on_event: Callable[[str], None],
        moves: Callable[[], int] = lambda: 0,
    ) -> None:
        """`moves` counts what the run as a whole has achieved: see `restart.Exit`."""
        self._moves = moves
        self._logs = folder / "logs"
        self._logs.mkdir(parents=True, exist_ok=True)
        # A run's folder may hold its own `shared/` or `services/`: never import from the current folder.
        self._environment = {**DEFAULTS, **os.environ, **environment, "PYTHONSAFEPATH": "1"}
        self._on_event = on_event
        self._watched: list[Watched] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False

    @property
    def watched(self) -> tuple[Watched, ...]:
        return tuple(self._watched)

    def start(self, name: str, arguments: list[str]) -> Watched:
        """Starts `temper <arguments>` and watches it from now on."""
        item = Watched(name, arguments, self._logs / f"{name}.log")
        self._watched.append(item)
        self._tasks.append(asyncio.create_task(self._keep_alive(item), name=name))
        return item

    def heard(self, name: str, pid: int | None = None) -> None:
        """The process `name` works; with `pid`, only if it is still that one (a heartbeat may be of its predecessor)."""
        for item in self._watched:
            if item.name == name and item.pid and pid in (None, item.pid):
                item.worked = True

    async def failure(self) -> None:
        """Returns when every watched process has ended well; raises `ProcessFailed` when one is given up."""
        pending = set(self._tasks)
        while pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                task.result()

    async def _keep_alive(self, item: Watched) -> None:
        while not self._stopping:
            started = time.monotonic()
            code = await self._run_once(item)
            if code == 0 or self._stopping:
                return
            words = last_words(item.log, item.log_start)
            lived_s = time.monotonic() - started
            decision = item.policy.on_exit(Exit(code, lived_s, item.worked, words, self._moves()))
            if isinstance(decision, GiveUp):
                raise ProcessFailed(f"{item.name}: {words} ({decision.reason}; log: {item.log})", code)
            cause = f": {words}" if code > 0 else ""
            self._on_event(
                f"{item.name} {describe_exit(code)}; starting it again in {decision.seconds:.1f} s{cause}"
            )
            await asyncio.sleep(decision.seconds)

    async def _run_once(self, item: Watched) -> int:
        item.starts += 1
        item.worked = False
        with item.log.open("ab") as log:
            item.log_start = log.tell()
            item.process = await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-m", "temper.up.child", str(os.getpid()), *item.arguments,
                stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log,
                env=self._environment, start_new_session=True,
            )  # fmt: skip
        note(item.pid_file, f"{item.process.pid}\n")
        try:
            item.exit_code = await item.process.wait()
        finally:
            if item.process.returncode is not None:
                item.pid_file.unlink(missing_ok=True)
        return item.exit_code

    async def stop(self, names: Callable[[str], bool], patience_s: float) -> None:
        """SIGTERM to the named processes, SIGKILL to those that are still there after `patience_s`."""
        self._stopping = True
        chosen = [item for item in self._watched if names(item.name)]
        for item in chosen:
            _signal(item, signal.SIGTERM)
        deadline = time.monotonic() + patience_s
        while any(item.pid for item in chosen) and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
        for item in chosen:
            if item.pid:
                self._on_event(f"{item.name} did not drain in {patience_s:.0f} s: killed")
                _signal(item, signal.SIGKILL)
        waiting = [task for task in self._tasks if names(task.get_name())]
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        for item in chosen:
            if item.process is not None and item.process.returncode is None:
                await item.process.wait()


def _signal(item: Watched, number: signal.Signals) -> None:
    if item.process is not None and item.process.returncode is None:
        item.process.send_signal(number)


def describe_exit(code: int) -> str:
    if code >= 0:
        return f"ended with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def last_words(log: Path, since: int = 0) -> str:
    """Its own one-line error where the process ended on purpose, else its last line, since byte `since` of its log."""
    try:
        with log.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(since, end - _TAIL_BYTES))
            lines = file.read().decode("utf-8", "backslashreplace").strip().splitlines()
    except OSError:
        return "no log"
    ours = [line.removeprefix(OURS) for line in lines if line.startswith(OURS)]
    return ours[-1] if ours else lines[-1] if lines else "no output"
