"""What a snapshot, a rollback and a fork cost on a workspace of 10,000 files and 1 GB.

`python -m benchmarks.sandbox_sessions`; part of `temper bench sandbox --json`. Two times each: until the call returns
(what the caller waits for: the state is kept then), and until the next command may begin.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from benchmarks.figures import figure, show
from benchmarks.sandbox import SETTINGS
from shared.sandbox.command import Command
from shared.sandbox.limits import Limits
from shared.sandbox.sandbox import Sandbox
from shared.sandbox.sessions.session import Session

FILES, GIB = 10_000, 1 << 30
ROUNDS = 9
LIMITS = Limits(wall_s=300, cpu_s=300, memory_mb=3000, disk_mb=2500, file_mb=64, inodes=60_000)
FILL = f"""
import os
block = os.urandom({GIB // FILES})
for folder in range(100):
    os.makedirs(f"tree/{{folder}}")
    for name in range({FILES // 100}):
        with open(f"tree/{{folder}}/{{name}}", "wb") as file:
            file.write(block)
"""
TOUCH = "for f in tree/1/*; do echo x >> $f; done; find tree -type f | wc -l"


async def timed(change: Callable[[], Awaitable[Any]], session: Session) -> tuple[Any, float, float]:
    started = time.perf_counter()
    value = await change()
    returned = time.perf_counter()
    await session.ready()
    return value, returned - started, time.perf_counter() - started


async def run() -> dict[str, list[tuple[float, float]]]:
    seen: dict[str, list[tuple[float, float]]] = {"snapshot": [], "rollback": [], "fork": []}
    async with Sandbox(SETTINGS) as sandbox, await sandbox.session(limits=LIMITS) as session:
        filled = await session.exec(Command(("python3", "-I", "-c", FILL)))
        assert filled.ok, filled
        for _ in range(ROUNDS):
            # A hundred files changed and every name looked at: nothing is fresh, everything is in use.
            done = await session.exec(Command(("/bin/sh", "-c", TOUCH)))
            assert done.stdout.strip() == str(FILES).encode(), done
            snapshot, *times = await timed(session.snapshot, session)
            seen["snapshot"].append((times[0], times[1]))
            await session.exec(Command(("/bin/sh", "-c", TOUCH)))
            _, *times = await timed(lambda snapshot=snapshot: session.roll_back(snapshot), session)  # type: ignore[misc]
            seen["rollback"].append((times[0], times[1]))
            await session.exec(Command(("/bin/sh", "-c", TOUCH)))
            started = time.perf_counter()
            fork = await session.fork()
            returned = time.perf_counter()
            await fork.ready()
            seen["fork"].append((returned - started, time.perf_counter() - started))
            await fork.close()
            await session.forget(snapshot)
    return seen


def measure() -> Iterator[dict[str, Any]]:
    for name, times in asyncio.run(run()).items():
        called, ready = (statistics.median(column) * 1000 for column in zip(*times, strict=True))
        slowest = max(time for time, _ in times) * 1000
        yield figure(
            f"sandbox.{name}", round(called, 3), "ms", slowest_ms=round(slowest, 3), ready_again_ms=round(ready, 2),
            files=FILES, bytes=GIB,
        )  # fmt: skip


def main() -> int:
    for line in measure():
        show(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
