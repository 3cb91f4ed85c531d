"""One killable child, as its parent sees it.

Invariant: a child is answering one question, idle, or gone. Whatever is not a clean answer ends with the child's
whole process group killed, so a late answer can never be taken for the next question's.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

import structlog

import shared
from shared.errors import ConfigError
from shared.verification.faults import CheckerDied, CheckTimedOut
from shared.verification.protocol import (
    MAX_LINE_BYTES,
    Answer,
    Hello,
    Question,
    outward,
    read_answer_line,
    read_ready,
    write_hello,
    write_question,
)

_START_S = 60.0
_STDERR_KEPT = 2000


def child_environment() -> dict[str, str]:
    """The parent's import path and nothing that could be a secret; numerical libraries stay on one thread."""
    assert shared.__file__ is not None
    home = str(Path(shared.__file__).resolve().parent.parent)
    absolute = [entry for entry in sys.path if entry and Path(entry).is_absolute()]
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL", "TZ") if name in os.environ}
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    return kept | threads | {"PYTHONPATH": os.pathsep.join(dict.fromkeys([home, *absolute]))}


class Child:
    """Start, ask, kill; used by one task at a time."""

    def __init__(self, hello: Hello, environment: Mapping[str, str]) -> None:
        self._hello = hello
        self._environment = environment
        self._process: asyncio.subprocess.Process | None = None
        self._stderr = bytearray()
        self._drain: asyncio.Task[None] | None = None
        self._log = structlog.get_logger()

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.returncode is None

    @property
    def pid(self) -> int:
        """0 when there is none."""
        return self._process.pid if self._process is not None and self.alive else 0

    async def start(self) -> None:
        """Raises `ConfigError` for domains that cannot be loaded, `CheckerDied` where the process fails."""
        await self.kill()
        self._stderr.clear()
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "shared.verification.checker",
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            env=dict(self._environment), limit=MAX_LINE_BYTES, start_new_session=True,
        )  # fmt: skip
        self._drain = asyncio.create_task(self._keep_stderr(self._process))
        try:
            ready = read_ready(await self._exchange(write_hello(self._hello), _START_S))
        except CheckTimedOut as error:
            await self.kill()
            raise CheckerDied(f"a checking child was not ready after {_START_S:g} s") from error
        except BaseException:
            await self.kill()
            raise
        if ready.error:
            await self.kill()
            raise ConfigError(ready.error)
        if ready.missing_limits:
            self._log.warning("checks run without a limit on this system", limits=ready.missing_limits)

    async def ask(self, question: Question) -> Answer:
        """Raises `CheckTimedOut` past the budget and `CheckerDied` where no answer comes; the child is then gone."""
        try:
            answer = read_answer_line(await self._exchange(write_question(question), question.budget_s))
        except BaseException:
            await self.kill()
            raise
        if answer.last:
            await self.kill()
        return answer

    async def kill(self) -> None:
        """SIGKILL to the child's process group, and the child reaped. Harmless when there is none."""
        process, self._process = self._process, None
        drain, self._drain = self._drain, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        if drain is not None:
            drain.cancel()
        await asyncio.shield(process.wait())

    async def _exchange(self, line: bytes, budget_s: float) -> bytes:
        process = self._process
        assert process is not None and process.stdin is not None and process.stdout is not None
        try:
            async with asyncio.timeout(budget_s):
                with contextlib.suppress(ConnectionError):
                    process.stdin.write(line)
                    await process.stdin.drain()
                answer = await process.stdout.readline()
        except TimeoutError as error:
            raise CheckTimedOut(
                f"the check passed its budget of {budget_s:g} s; its child was killed"
            ) from error
        except ValueError as error:
            raise CheckerDied(f"a checking child wrote a line of over {MAX_LINE_BYTES} bytes") from error
        if not answer.endswith(b"\n"):
            raise await self._obituary(process)
        return answer

    async def _obituary(self, process: asyncio.subprocess.Process) -> CheckerDied | CheckTimedOut:
        """Why the pipe closed before an answer."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await process.wait()
                if self._drain is not None:
                    await self._drain
        code = process.returncode
        if code is not None and -code in (signal.SIGXCPU, signal.SIGALRM):
            return CheckTimedOut(f"the check passed its limits and ended by {signal.Signals(-code).name}")
        how = (
            f"by {signal.Signals(-code).name}" if code is not None and code < 0 else f"with exit code {code}"
        )
        said = outward(bytes(self._stderr).decode("utf-8", "backslashreplace").strip()[-300:])
        return CheckerDied(f"a checking child ended {how}" + (f": {said}" if said else ""))

    async def _keep_stderr(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        while chunk := await process.stderr.read(4096):
            self._stderr += chunk
            del self._stderr[:-_STDERR_KEPT]
