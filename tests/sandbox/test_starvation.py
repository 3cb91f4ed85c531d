"""Time without a processor is not the program's own: seen on real processes that share one core with others."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from shared.sandbox.command import Command
from shared.sandbox.limits import Limits
from shared.sandbox.outcome import Outcome
from shared.sandbox.sandbox import Sandbox
from shared.sandbox.starvation import MOST_TIMES, Starvation, delays

BUSY = "while True: pass"


@pytest.fixture
def crowd() -> Iterator[None]:
    """Four spinning processes a core, at our own niceness. Each in a session of its own: the kernel's autogroups
    (sched(7)) give one session no more than another, however many spin in it."""
    count = 4 * (os.cpu_count() or 1)
    line = [sys.executable, "-I", "-S", "-c", BUSY]
    others = [subprocess.Popen(line, start_new_session=True) for _ in range(count)]
    yield
    for other in others:
        other.kill()
    for other in others:
        other.wait()


def test_delays_of_what_is_gone_are_nothing() -> None:
    assert delays([0, 1 << 30]) == {}
    assert any(pid == os.getpid() for pid, _ in delays([os.getpid()]))


def test_what_is_given_is_bounded_and_never_more_than_the_time_that_passed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = iter([{(1, 1): 10**9}, {(1, 1): 10**12}, {(2, 2): 10**15}, {}])
    monkeypatch.setattr("shared.sandbox.starvation.delays", lambda pids: next(seen))
    starved = Starvation(lambda: [1], wall_s=1.0)
    totals = []
    for now in (0.5, 2.0, 10.0, 11.0):
        starved.look(now)
        totals.append(starved.seconds)
    assert totals == [0.5, 2.0, MOST_TIMES * 1.0, MOST_TIMES * 1.0]


@pytest.mark.slow
@pytest.mark.parametrize("way", ["jail", "prewarmed"])
def test_a_crowd_of_others_does_not_bring_a_program_to_its_wall_limit(way: str, crowd: None) -> None:
    """Half a second of CPU, and no less than 1.6 of wall time: beside four others a core it waits for most of that."""
    source = (
        "import time\nstart = time.monotonic()\n"
        "while time.process_time() < 0.5 or time.monotonic() < start + 1.6: pass\nprint('done')"
    )
    limits = Limits(wall_s=1.5, cpu_s=5)

    async def run() -> object:
        async with Sandbox() as sandbox:
            if way == "jail":
                return await sandbox.run(Command(("python3", "-I", "-S", "-c", source)), limits)
            from shared.sandbox.prewarmed.child import Check

            return await sandbox.prewarmed.run(Check(source), limits)

    result = asyncio.run(run())
    assert result.outcome is Outcome.EXITED and result.stdout == b"done\n", result  # type: ignore[attr-defined]
    assert result.usage.wall_s > 1.5, "it was not crowded at all"  # type: ignore[attr-defined]


@pytest.mark.slow
def test_a_sleeper_gets_nothing_for_others_work(crowd: None) -> None:
    async def run() -> object:
        async with Sandbox() as sandbox:
            return await sandbox.run(Command(("/bin/sleep", "60")), Limits(wall_s=1))

    result = asyncio.run(run())
    assert result.outcome is Outcome.WALL_LIMIT and result.usage.wall_s < 4, result  # type: ignore[attr-defined]
