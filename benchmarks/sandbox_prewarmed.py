"""What a prewarmed check costs: its first byte against that of a bare nsjail, how many a second, what is left of the
processor for the checks themselves, and what it gains to prepare them ahead.

`python -m benchmarks.sandbox_prewarmed [--quick]`; part of `temper bench sandbox --json`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import statistics
import sys
import time
from collections.abc import Iterator
from typing import Any

from benchmarks.figures import figure, show
from benchmarks.sandbox import BUSY, SETTINGS, bare_first_bytes, spread
from shared.promptness import be_prompt
from shared.sandbox.limits import Limits
from shared.sandbox.prewarmed.child import Check
from shared.sandbox.prewarmed.forks import Prewarmed
from shared.sandbox.prewarmed.pool import RESERVE
from shared.sandbox.sandbox import Sandbox

FIRST_BYTE = Check("import temper_channel; temper_channel.write(b'1')", channel=True)
TRIVIAL = Check("print(1)")
BUSY_CHECK = Check(BUSY)
LIMITS = Limits()
CORES = os.cpu_count() or 1
ROUNDS = 10
PAUSE_S = 0.01
"""Between checks whose start is measured: one start, not a queue."""


async def first_byte(prewarmed: Prewarmed) -> float:
    """Seconds from the call to the check's first byte in our hands."""
    started = time.perf_counter()
    async with prewarmed.open(FIRST_BYTE, LIMITS) as child:
        assert await child.receive() == b"1"
        seconds = time.perf_counter() - started
        assert (await child.finish()).ok
    await asyncio.sleep(PAUSE_S)
    return seconds


async def first_bytes(runs: int) -> list[dict[str, Any]]:
    """From the reserve, on demand, and by a bare nsjail, in turns: what else the machine does meets all alike."""
    taken: dict[str, list[float]] = {"reserve": [], "on_demand": [], "bare": []}
    be_prompt()  # As a verifier is.
    async with (
        Sandbox(SETTINGS) as sandbox,
        Prewarmed(sandbox) as ahead,
        Prewarmed(sandbox, reserve=0) as on_demand,
    ):
        for _ in range(ROUNDS):
            taken["bare"] += (await bare_first_bytes(runs // ROUNDS + 2))[2:]
            # Of three hundred, three decide the 99th percentile; that of the reserve is a promise.
            for name, prewarmed, more in (("reserve", ahead, 3), ("on_demand", on_demand, 1)):
                seconds = [await first_byte(prewarmed) for _ in range(more * runs // ROUNDS + 2)]
                taken[name] += seconds[2:]
    median = {name: statistics.median(seconds) for name, seconds in taken.items()}
    lines = [
        figure(f"sandbox.prewarmed_first_byte_{name}", spread(taken[name])["median_ms"], "ms", **spread(taken[name]))
        for name in taken
        if name != "bare"
    ]  # fmt: skip
    p99 = spread(taken["reserve"])["p99_ms"] / 1e3
    lines.append(
        figure(
            "sandbox.prewarmed_first_byte_to_bare_nsjail",
            round(median["reserve"] / median["bare"], 3),
            "ratio",
            limit=0.333,
            bare=spread(taken["bare"]),
            p99_to_own_median=round(p99 / median["reserve"], 2),
            p99_limit=2.0,
            reserve=RESERVE,
            others_load=_load(),
        )
    )
    return lines


async def throughput(checks: int, at_once: int) -> dict[str, Any]:
    """Whole checks through the public call, groups made and removed, each used once."""
    async with Sandbox(SETTINGS) as sandbox, Prewarmed(sandbox) as prewarmed:
        await prewarmed.run(TRIVIAL, LIMITS)
        own, mode = _own_cpu(), sandbox.mode
        wall = await _run_all(prewarmed, TRIVIAL, checks, at_once)
        own = _own_cpu() - own
    return figure(
        "sandbox.prewarmed_checks_a_second", round(checks / wall, 1), "checks/s", limit=250, checks=checks,
        at_once=at_once, our_cpu_ms_a_check=round(own / checks * 1e3, 2), cgroups=mode, others_load=_load(),
    )  # fmt: skip


async def efficiency(checks: int, at_once: int) -> dict[str, Any]:
    """Of all CPU time of all cores, how much went into checks that use 100 ms each: as the kernel counts them, less
    what a check that does nothing is counted. `by_their_own_clock`: the same of the 100 ms that each of them sees,
    without what its page faults and its end took."""
    async with Sandbox(SETTINGS) as sandbox, Prewarmed(sandbox) as prewarmed:
        await prewarmed.run(TRIVIAL, LIMITS)
        nothing = [(await prewarmed.run(TRIVIAL, LIMITS)).usage.cpu_s for _ in range(20)]
        used: list[float] = []
        wall = await _run_all(prewarmed, BUSY_CHECK, checks, at_once, used)
    there, own = wall * CORES, statistics.mean(used) - statistics.median(nothing)
    return figure(
        "sandbox.prewarmed_cpu_efficiency", round(checks * own / there, 3), "of CPU time", limit=0.9,
        by_their_own_clock=round(checks * 0.1 / there, 3), cpu_ms_a_check=round(own * 1e3, 1),
        checks=checks, at_once=at_once, others_load=_load(),
    )  # fmt: skip


async def imports(runs: int = 30) -> dict[str, Any]:
    """What it saves to have numpy imported before, and what that costs each fork."""
    source = "import numpy, temper_channel; temper_channel.write(b'1')"
    taken: dict[str, list[float]] = {"ahead": [], "in_the_check": []}
    async with Sandbox(SETTINGS) as sandbox, Prewarmed(sandbox) as prewarmed:
        for number in range(runs + 2):
            for name, wanted in (("ahead", ("numpy",)), ("in_the_check", ())):
                started = time.perf_counter()
                async with prewarmed.open(Check(source, channel=True, imports=wanted), LIMITS) as child:
                    assert await child.receive() == b"1"
                    if number >= 2:
                        taken[name].append(time.perf_counter() - started)
                    await child.finish()
    return figure(
        "sandbox.prewarmed_first_byte_numpy", spread(taken["ahead"])["median_ms"], "ms", ahead=spread(taken["ahead"]),
        in_the_check=spread(taken["in_the_check"]), others_load=_load(),
    )  # fmt: skip


async def _run_all(
    prewarmed: Prewarmed, check: Check, checks: int, at_once: int, used: list[float] | None = None
) -> float:
    room = asyncio.Semaphore(at_once)

    async def one() -> None:
        async with room:
            result = await prewarmed.run(check, LIMITS)
            assert result.ok, result
            if used is not None:
                used.append(result.usage.cpu_s)

    started = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(checks)))
    return time.perf_counter() - started


def _own_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _load() -> float:
    return round(os.getloadavg()[0], 2)


def measure(scale: float = 1.0) -> Iterator[dict[str, Any]]:
    """Every figure; `scale` 0.1 is a quick look."""
    yield from asyncio.run(first_bytes(int(300 * scale)))
    yield asyncio.run(throughput(int(2000 * scale), 4 * CORES))
    yield asyncio.run(efficiency(int(200 * scale), 2 * CORES))
    yield asyncio.run(imports(max(5, int(30 * scale))))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sandbox_prewarmed")
    parser.add_argument("--quick", action="store_true", help="a tenth of the checks")
    for line in measure(0.1 if parser.parse_args().quick else 1.0):
        show(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
