"""What a jail costs, and that it leaves nothing.

`python -m benchmarks.sandbox --json [--runs N]`, or `temper bench sandbox --json`. Every module `benchmarks.sandbox_*`
with a `measure()` is part of it. The soak makes `--runs` runs (10,000 takes minutes).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib
import json
import os
import pkgutil
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import benchmarks
from benchmarks.figures import figure, show
from shared.sandbox.binary import find_nsjail
from shared.sandbox.cgroups.choose import owners_folders
from shared.sandbox.command import Command
from shared.sandbox.keeper.client import KeeperClient
from shared.sandbox.limits import Limits
from shared.sandbox.nsjail import Jail, command_line
from shared.sandbox.outcome import Outcome
from shared.sandbox.owners import owner_name
from shared.sandbox.roots import Roots
from shared.sandbox.sandbox import Sandbox
from shared.sandbox.seccomp import Policy
from shared.sandbox.settings import SandboxSettings
from shared.sandbox.streams import Drain

SETTINGS = SandboxSettings(allow_weaker=("rlimits_only",))
TRIVIAL = ("/python/bin/python3", "-I", "-S", "-c", "print(1)")
"""The least that a Python check can be."""
FLOOD_BYTES = 10_000_000_000
WARM_RUNS = 20


def peak_kib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


async def bare_first_bytes(runs: int, argv: Sequence[str] = TRIVIAL) -> list[float]:
    """Seconds from the start of nsjail to the first byte that `argv` prints, of each of `runs` bare starts.

    The same binary, root, filter and limits as a run of ours, and nothing around it: no cgroup, no process 1, nobody
    who watches. The keeper forks it, since only there the root is to be seen: a fork and an exec, as for anybody who
    starts it. It is what pre-warmed checks are compared with.
    """
    keeper = KeeperClient()
    await keeper.start(Path(SETTINGS.state_folder))
    try:
        root = await Roots(keeper, {}, SETTINGS.python_packages).path("default")
        jail = Jail(root=root, uid=SETTINGS.first_uid - 1, limits=Limits(), seccomp=Policy().kafel())
        line = command_line(find_nsjail(SETTINGS.nsjail), jail, argv)
        return [await _first_byte(keeper, line) for _ in range(runs)]
    finally:
        await keeper.close()


async def _first_byte(keeper: KeeperClient, line: Sequence[str]) -> float:
    reader, writer = os.pipe2(os.O_CLOEXEC)
    with Path(os.devnull).open("w") as nothing:
        started = time.perf_counter()
        process = await keeper.spawn(line, {}, {1: writer, 2: nothing.fileno()})
    os.close(writer)
    os.set_blocking(reader, False)
    ready = asyncio.Event()
    asyncio.get_running_loop().add_reader(reader, ready.set)
    await ready.wait()
    seconds = time.perf_counter() - started
    asyncio.get_running_loop().remove_reader(reader)
    assert os.read(reader, 10) == b"1\n"
    os.close(reader)
    await process.wait()
    return seconds


def spread(seconds: Sequence[float]) -> dict[str, float]:
    """In milliseconds."""
    ordered = sorted(seconds)
    return {
        "median_ms": round(statistics.median(ordered) * 1e3, 3),
        "p99_ms": round(ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))] * 1e3, 3),
        "least_ms": round(ordered[0] * 1e3, 3),
        "runs": len(ordered),
    }


async def bare_start(runs: int = 100) -> dict[str, Any]:
    seconds = await bare_first_bytes(runs)
    return figure("sandbox.bare_nsjail_first_byte", spread(seconds)["median_ms"], "ms", **spread(seconds))


async def whole_run(runs: int = 100) -> dict[str, Any]:
    """One `Sandbox.run` of the same command after the other: groups, limits, watching and removal included."""
    seconds = []
    async with Sandbox(SETTINGS) as sandbox:
        for number in range(runs + WARM_RUNS):
            started = time.perf_counter()
            (await sandbox.run(Command(TRIVIAL))).raise_for_infrastructure()
            if number >= WARM_RUNS:
                seconds.append(time.perf_counter() - started)
        about = {**spread(seconds), "cgroups": sandbox.mode}
    return figure("sandbox.run_of_trivial_python", about["median_ms"], "ms", **about)


async def flood(runs: int = 4) -> dict[str, Any]:
    """What a program that wants to print 10 GB costs us: it is ended at four times the cap; and what it costs to read
    all of it, as if it were not."""
    async with Sandbox(SETTINGS) as sandbox:
        await sandbox.run(Command(("true",)))
        before = peak_kib()
        command = Command(("head", "-c", str(FLOOD_BYTES), "/dev/zero"))
        results = await asyncio.gather(*(sandbox.run(command) for _ in range(runs)))
        assert all(result.outcome is Outcome.OUTPUT_LIMIT for result in results)
        ended = peak_kib() - before
    seconds = await _read_all()
    return figure(
        "sandbox.flood_memory", round((peak_kib() - before) / 1024, 2), "MiB",
        ended_at_the_limit_mib=round(ended / 1024, 2), floods_at_once=runs, read_whole_bytes=FLOOD_BYTES,
        read_whole_s=round(seconds, 2),
    )  # fmt: skip


async def _read_all() -> float:
    reader, writer = os.pipe2(os.O_CLOEXEC)
    process = await asyncio.create_subprocess_exec("head", "-c", str(FLOOD_BYTES), "/dev/zero", stdout=writer)
    os.close(writer)
    started = time.perf_counter()
    drain = Drain(reader, Limits().output_kb << 10, lambda: None)
    await drain.wait()
    assert drain.seen == FLOOD_BYTES
    await process.wait()
    return time.perf_counter() - started


BUSY = "import time\nend = time.process_time() + 0.1\nwhile time.process_time() < end: pass\n"


async def cpu_efficiency(checks: int = 60) -> dict[str, Any]:
    """Checks that use 100 ms of CPU each, as many at once as there are cores: their share of all the CPU time there
    was. A whole jail and a whole Python for each; pre-warmed checks have a figure of their own."""
    cores = os.cpu_count() or 1
    async with Sandbox(SETTINGS) as sandbox:
        room = asyncio.Semaphore(cores)

        async def one() -> None:
            async with room:
                result = await sandbox.run(Command(("/python/bin/python3", "-I", "-S", "-c", BUSY)))
                assert result.ok, result

        await one()
        started = time.perf_counter()
        await asyncio.gather(*(one() for _ in range(checks)))
        wall = time.perf_counter() - started
    return figure(
        "sandbox.run_cpu_efficiency", round(checks * 0.1 / (wall * cores), 3), "of CPU time",
        checks=checks, wall_s=round(wall, 2), others_load=round(os.getloadavg()[0], 2),
    )  # fmt: skip


async def soak(runs: int = 300) -> dict[str, Any]:
    """Many runs that end in different ways; the value is how many things of theirs were left (none may be)."""
    kinds = [
        ("true",), ("sh", "-c", "exit 3"), ("sh", "-c", "kill -9 $$"), ("sh", "-c", "setsid sleep 60 & echo left"),
        ("sh", "-c", "head -c 1000000 /dev/zero > /tmp/x; echo x > /work/x"), ("nothing-of-that-name",),
    ]  # fmt: skip
    room = asyncio.Semaphore(2 * (os.cpu_count() or 1))
    outcomes: dict[str, int] = {}
    async with _watched() as (sandbox, left):

        async def one(number: int) -> None:
            async with room:
                result = await sandbox.run(Command(kinds[number % len(kinds)]))
                outcomes[result.outcome] = outcomes.get(result.outcome, 0) + 1

        await asyncio.gather(*(one(number) for number in range(WARM_RUNS)))
        before, started = peak_kib(), time.perf_counter()
        for first in range(0, runs, 1000):
            await asyncio.gather(*(one(number) for number in range(first, min(runs, first + 1000))))
        wall, grown = time.perf_counter() - started, peak_kib() - before
        found = left()
    return figure(
        "sandbox.left_after_runs", len(found), "things", runs=runs, found=found[:10],
        outcomes={str(key): count for key, count in sorted(outcomes.items())}, wall_s=round(wall, 1),
        runs_a_second=round(runs / wall, 1), memory_grown_mib=round(grown / 1024, 2),
    )  # fmt: skip


@asynccontextmanager
async def _watched() -> AsyncIterator[tuple[Sandbox, Any]]:
    """A sandbox, and a function that names what is there now and was not before its first run."""
    async with Sandbox(SETTINGS) as sandbox:
        (await sandbox.run(Command(("true",)))).raise_for_infrastructure()
        before = _things(sandbox)
        yield sandbox, lambda: sorted(_things(sandbox) - before)


def _things(sandbox: Sandbox) -> set[str]:
    keeper = sandbox.keeper
    found = {f"descriptor {name}" for name in os.listdir("/proc/self/fd")}  # noqa: PTH208 - iterating opens one more
    found |= {f"process {pid}" for pid in _below(os.getpid())}
    found |= {
        f"mount {line.split()[4]}" for line in Path(f"/proc/{keeper.pid}/mountinfo").read_text().splitlines()
    }
    found |= {
        f"group {path}"
        for top in owners_folders()
        for path in (top / owner_name()).glob("*")
        if path.is_dir()
    }
    inside = Path(f"/proc/{keeper.pid}/root{keeper.folder}")
    found |= {f"file {path.relative_to(inside)}" for path in (inside / "runs").glob("*")}
    found |= {f"file {path}" for path in Path(tempfile.gettempdir()).glob("nsjail*")}
    return found


def _below(pid: int) -> Iterator[int]:
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in path.read_text().split():
                yield int(child)
                yield from _below(int(child))


def measure(runs: int = 300) -> Iterator[dict[str, Any]]:
    """Every figure of the sandbox, those of its neighbours included."""
    # In a process of its own: the figure is how far a peak rises, and this one's may be high already.
    yield _alone("flood")
    yield asyncio.run(bare_start())
    yield asyncio.run(whole_run())
    yield asyncio.run(cpu_efficiency())
    yield asyncio.run(soak(runs))
    for module in sorted(found.name for found in pkgutil.iter_modules(benchmarks.__path__)):
        if module.startswith("sandbox_"):
            yield from importlib.import_module(f"benchmarks.{module}").measure()


def _alone(name: str) -> dict[str, Any]:
    line = [sys.executable, "-m", "benchmarks.sandbox", "--only", name]
    done = subprocess.run(line, stdout=subprocess.PIPE, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sandbox")
    parser.add_argument("--json", action="store_true", help="one JSON object a line (always so)")
    parser.add_argument("--runs", type=int, default=300, help="of the soak")
    parser.add_argument("--only", choices=("flood",), help="this figure, in this process")
    given = parser.parse_args()
    for line in [asyncio.run(flood())] if given.only else measure(given.runs):
        show(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
