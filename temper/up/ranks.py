"""One learner as several processes on this machine: started together, ended together.

Invariant: a rank that ends before its time ends all, and its own words are the last line that is said; nothing started
here outlives this process. The ranks are told who they are as `torchrun` tells them, so either may start them. This
starts in 0.3 s instead of seconds, and the exit code is that of the rank that failed: what is told from it is whether a
restart can mend anything.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from shared.contracts.worker import GROUP_PID
from temper.up.processes import OURS, ProcessFailed, describe_exit

LOST_S = 10.0
"""For the other ranks to end by themselves once one is gone: rank 0 may be writing a checkpoint."""


@dataclass
class _Rank:
    number: int
    process: asyncio.subprocess.Process
    words: str = ""
    """Its last line that begins as ours do."""

    async def watch(self) -> _Rank:
        """Passes on what it says; returns when it has ended."""
        assert self.process.stderr is not None
        while line := await self.process.stderr.readline():
            sys.stderr.buffer.write(line)
            sys.stderr.buffer.flush()
            text = line.decode("utf-8", "backslashreplace").strip()
            if text.startswith(OURS):
                self.words = text.removeprefix(OURS)
        await self.process.wait()
        return self

    @property
    def code(self) -> int:
        return self.process.returncode or 0


def environment_of(rank: int, ranks: int, port: int, environment: Mapping[str, str]) -> dict[str, str]:
    """As `torchrun` sets it for a group on one machine; cores are shared unless the environment says otherwise."""
    return {
        "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // ranks)),
        # All ranks are here: without it gloo asks what this machine's name resolves to, which may be nothing.
        "GLOO_SOCKET_IFNAME": "lo" if sys.platform == "linux" else "lo0",
        **environment,
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        GROUP_PID: str(os.getpid()),
    }


def run_ranks(arguments: list[str], worker_id: str, ranks: int, patience_s: float) -> None:
    """`temper <arguments>` as `ranks` processes, until all have ended. SIGTERM and SIGINT ask all of them to drain; who
    is still there `patience_s` later is killed.

    Raises `ProcessFailed` with the words and the exit code of the first rank that failed.
    """
    asyncio.run(_Group(arguments, worker_id, ranks, patience_s).run())


class _Group:
    def __init__(self, arguments: list[str], worker_id: str, ranks: int, patience_s: float) -> None:
        self._arguments = arguments
        self._worker_id = worker_id
        self._count = ranks
        self._patience_s = patience_s
        self._ranks: list[_Rank] = []
        self._asked = asyncio.Event()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._asked.set)
        port = _free_port()
        self._ranks = [await self._start(rank, port) for rank in range(self._count)]
        watching = {asyncio.create_task(rank.watch()) for rank in self._ranks}
        asked = asyncio.create_task(self._asked.wait())
        failed = await self._first_failure(watching, asked)
        asked.cancel()
        await self._end(watching, self._patience_s if failed is None else LOST_S)
        failed = failed or next((rank for rank in self._ranks if rank.code > 0), None)
        if failed is not None:
            words = failed.words or describe_exit(failed.code)
            raise ProcessFailed(
                f"rank {failed.number} of the learner's {self._count} processes: {words}", failed.code
            )

    async def _start(self, rank: int, port: int) -> _Rank:
        worker = self._worker_id if rank == 0 else f"{self._worker_id}-rank{rank}"
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "temper.up.child", str(os.getpid()),
            *self._arguments, "--worker-id", worker,
            stdin=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE, start_new_session=True,
            env=environment_of(rank, self._count, port, os.environ), limit=1 << 20,
        )  # fmt: skip
        return _Rank(rank, process)

    async def _first_failure(
        self, watching: set[asyncio.Task[_Rank]], asked: asyncio.Task[bool]
    ) -> _Rank | None:
        """None when all have ended well, or a stop is asked for."""
        pending: set[asyncio.Task[_Rank]] = set(watching)
        while pending and not asked.done():
            await asyncio.wait({*pending, asked}, return_when=asyncio.FIRST_COMPLETED)
            ended = {task for task in pending if task.done()}
            pending -= ended
            failed = [task.result() for task in ended if task.result().code]
            if failed:
                return min(failed, key=lambda rank: rank.number)
        return None

    async def _end(self, watching: set[asyncio.Task[_Rank]], patience_s: float) -> None:
        self._signal(signal.SIGTERM)
        await asyncio.wait(watching, timeout=patience_s)
        self._signal(signal.SIGKILL)
        await asyncio.wait(watching)

    def _signal(self, number: signal.Signals) -> None:
        for rank in self._ranks:
            if rank.process.returncode is None:
                rank.process.send_signal(number)


def _free_port() -> int:
    """Rank 0 listens there. Whoever takes it in between makes rank 0 fail with that reason, and the next start finds
    another."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])
