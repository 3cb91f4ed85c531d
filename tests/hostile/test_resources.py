"""Programs that take what they can get: each has its one right status, in every way of counting this machine has.

After each of them nothing is left, and the next run is as if nothing had been.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from shared.sandbox.command import Command
from shared.sandbox.limits import MIB, Limits
from shared.sandbox.outcome import Outcome, Result
from tests.sandbox.machines import MODES, Jailer, jailer, patient

PROGRAMS = Path(__file__).parent / "programs"
SMALL = Limits(
    wall_s=8,
    cpu_s=6,
    memory_mb=64,
    processes=16,
    output_kb=64,
    file_mb=24,
    disk_mb=16,
    inodes=2000,
    open_files=64,
)

pytestmark = pytest.mark.slow


def exits(code: int) -> Callable[[Result], None]:
    def look(result: Result) -> None:
        assert (result.exit_code, result.signal) == (code, None), result

    return look


def dies(number: int) -> Callable[[Result], None]:
    def look(result: Result) -> None:
        assert (result.exit_code, result.signal) == (None, number), result

    return look


def prints(expected: bytes) -> Callable[[Result], None]:
    def look(result: Result) -> None:
        assert (result.exit_code, result.stdout) == (0, expected), result

    return look


def keeps(cap: int) -> Callable[[Result], None]:
    """One stream is cut at its cap, and the count goes on past four times of it."""

    def look(result: Result) -> None:
        kept, seen = max(
            (len(result.stdout), result.usage.stdout_bytes), (len(result.stderr), result.usage.stderr_bytes)
        )
        assert kept == cap and seen > 4 * cap
        assert result.stdout_truncated or result.stderr_truncated

    return look


def leaves_a_daemon(result: Result) -> None:
    """What it says of itself, and on a slow machine what the daemon says before it is ended."""
    first, *more = result.stdout.splitlines()
    assert (result.exit_code, result.left_behind, first) == (0, 1, b"left"), result
    assert set(more) <= {b"still here"}, result


def collects(names: int, most_bytes: int) -> Callable[[Result], None]:
    def look(result: Result) -> None:
        assert result.exit_code == 0
        assert len(result.artifacts) <= names
        assert sum(map(len, result.artifacts.values())) <= most_bytes

    return look


def anything(result: Result) -> None:
    assert result.exit_code is None and result.signal is None


@dataclass(frozen=True)
class Case:
    """`weaker`: the right status where nothing counts memory for us, if it is another."""

    outcome: Outcome
    look: Callable[[Result], None] = anything
    arguments: tuple[str, ...] = ()
    limits: Limits = SMALL
    collect: tuple[str, ...] = ()
    weaker: Outcome | None = None
    weaker_look: Callable[[Result], None] = anything
    program: str = ""
    argv: tuple[str, ...] = field(default=())


EXITED, SIGNALLED = Outcome.EXITED, Outcome.SIGNALLED
SHORT = replace(SMALL, wall_s=0.7)
LITTLE_CPU = replace(SMALL, cpu_s=0.6)
MANY_PAGES = replace(LITTLE_CPU, memory_mb=256)
"""Sixteen forks of an interpreter that has imported much write 4 MiB of pages each on a busy machine: that is 64."""

CASES = {
    "fork bomb": Case(Outcome.PROCESS_LIMIT, program="fork_bomb", limits=MANY_PAGES),
    "thread bomb": Case(Outcome.PROCESS_LIMIT, program="thread_bomb", limits=LITTLE_CPU),
    "zombies": Case(Outcome.PROCESS_LIMIT, program="zombies"),
    "two children over the limit together": Case(Outcome.MEMORY_LIMIT, program="two_children", arguments=("48",)),
    "two children below it": Case(Outcome.WALL_LIMIT, program="two_children", arguments=("12",), limits=SHORT),
    # Without groups one allocation past the address space is refused, which the program sees and dies of.
    "one allocation of 10 GB": Case(
        Outcome.MEMORY_LIMIT, program="one_allocation", weaker=EXITED, weaker_look=exits(1)
    ),
    "shared memory": Case(Outcome.MEMORY_LIMIT, program="shared_memory", arguments=("256",)),
    "sparse shared memory": Case(Outcome.DISK_LIMIT, program="sparse_shm"),
    "scratch disk full": Case(Outcome.DISK_LIMIT, program="fill_disk", arguments=("/tmp",)),
    "work folder full": Case(Outcome.DISK_LIMIT, program="fill_disk", arguments=("/work",)),
    "a million inodes": Case(Outcome.DISK_LIMIT, program="million_inodes"),
    "a file too large": Case(
        Outcome.DISK_LIMIT, program="large_file", limits=replace(SMALL, file_mb=4)
    ),
    "a file too large, and killed for it": Case(
        Outcome.DISK_LIMIT, argv=("dd", "if=/dev/zero", "of=/work/large", "bs=1M"), limits=replace(SMALL, file_mb=4)
    ),
    "a pebibyte as artifact": Case(
        EXITED, collects(1, 24 * MIB), program="sparse_artifact", collect=("artifact",)
    ),
    "a thousand nested folders": Case(
        EXITED, collects(1, 0), program="nested_folders", collect=("d/" * 999 + "d/bottom", "d/d")
    ),
    "a hundred links to one large file": Case(
        EXITED, collects(2, 16 * MIB), program="many_links", collect=tuple(map(str, range(100)))
    ),
    "flood on stdout": Case(Outcome.OUTPUT_LIMIT, keeps(64 << 10), program="flood", arguments=("1",)),
    "flood on stderr": Case(Outcome.OUTPUT_LIMIT, keeps(64 << 10), program="flood", arguments=("2",)),
    "a pipe made large": Case(EXITED, exits(0), program="full_pipe"),
    "streams closed, asleep": Case(Outcome.WALL_LIMIT, program="close_and_sleep", limits=SHORT),
    "stopped, with its group": Case(Outcome.WALL_LIMIT, program="stop_all", limits=SHORT),
    "traces itself and forks": Case(EXITED, prints(b"-1 -1 0\n"), program="trace_itself"),
    "every signal ignored": Case(Outcome.WALL_LIMIT, program="ignore_sigterm", limits=SHORT),
    "double fork": Case(EXITED, leaves_a_daemon, program="daemon"),
    "spinning": Case(Outcome.CPU_LIMIT, program="spin", limits=replace(SMALL, cpu_s=0.5)),
    "sleeping": Case(Outcome.WALL_LIMIT, argv=("sleep", "60"), limits=SHORT),
    "descriptors": Case(EXITED, exits(1), program="descriptors"),
    "segmentation fault": Case(SIGNALLED, dies(signal.SIGSEGV), program="segfault"),
    "segmentation fault, sent": Case(SIGNALLED, dies(signal.SIGSEGV), argv=("sh", "-c", "kill -SEGV $$")),
    "killed by itself": Case(SIGNALLED, dies(signal.SIGKILL), argv=("sh", "-c", "kill -9 $$")),
    "ends with 137": Case(EXITED, exits(137), argv=("sh", "-c", "exit 137")),
    "kills all it may": Case(EXITED, prints(b"alone\n"), program="kill_all"),
    "NUL bytes": Case(EXITED, prints(b"a\0b\0"), argv=("printf", r"a\000b\000")),
    "invalid UTF-8": Case(EXITED, prints(b"\xff\xfe\xed\xa0\x80"), argv=("printf", r"\377\376\355\240\200")),
    "arguments that are no text": Case(EXITED, prints(b"\xff\n"), argv=("echo", "\udcff")),
}  # fmt: skip


@pytest.fixture(scope="module", params=MODES)
def jail(request: pytest.FixtureRequest) -> Iterator[Jailer]:
    with jailer(request.param) as made:
        yield made


async def in_session(jail: Jailer, command: Command, limits: Limits) -> Result:
    async with await jail.sandbox.session(limits=patient(limits)) as session:
        return await session.exec(command)


@pytest.mark.parametrize("way", ["run", "session"])
@pytest.mark.parametrize("name", CASES)
def test_each_has_its_status_and_leaves_nothing(jail: Jailer, name: str, way: str) -> None:
    case = CASES[name]
    argv = case.argv or ("python3", "program.py", *case.arguments)
    files = {"program.py": (PROGRAMS / f"{case.program}.py").read_bytes()} if case.program else {}
    command = Command(argv, files=files, collect=case.collect)
    result = (
        jail.run(command, case.limits) if way == "run" else jail.wait(in_session(jail, command, case.limits))
    )
    weaker = jail.mode == "none" and case.weaker is not None
    assert result.outcome is (case.weaker if weaker else case.outcome), result
    (case.weaker_look if weaker else case.look)(result)
    assert jail.leftovers() == []
    after = jail.run(Command(("sh", "-c", "ls -A /work /tmp /dev/shm; echo fine")), SMALL)
    assert after.ok and after.stdout == b"/dev/shm:\n\n/tmp:\n\n/work:\nfine\n", after


def test_a_flood_costs_us_little(jail: Jailer) -> None:
    """Ten gigabytes are asked for; what we hold of them is the cap, whatever the writer's speed."""
    import resource

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    program = {"program.py": (PROGRAMS / "flood.py").read_bytes()}

    async def many() -> list[Result]:
        command = Command(("python3", "program.py", "1"), files=program)
        return await asyncio.gather(*(jail.sandbox.run(command, SMALL) for _ in range(4)))

    results = jail.wait(many())
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert {result.outcome for result in results} == {Outcome.OUTPUT_LIMIT}
    assert grown < 32 << 10, f"{grown} KiB"
