"""What becomes of checks when the server they came from, the keeper, or we ourselves are gone."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from shared.sandbox.cgroups.choose import owners_folders
from shared.sandbox.faults import SandboxFault
from shared.sandbox.outcome import Outcome, Result
from shared.sandbox.prewarmed.child import Check, Child
from shared.sandbox.prewarmed.pool import RESERVE
from tests.sandbox.machines import MODES, Jailer, jailer
from tests.sandbox.prewarmed.parts import SMALL, nothing_left, printed

SLEEPS = Check("import time; time.sleep(30)")


def text(path: str) -> str:
    """Processes come and go while they are looked at."""
    with contextlib.suppress(OSError):
        return Path(path).read_text(errors="replace")
    return ""


def below(pid: int) -> list[int]:
    """All processes under `pid`, the nearest first."""
    found = [int(child) for child in text(f"/proc/{pid}/task/{pid}/children").split()]
    return found + [deeper for child in found for deeper in below(child)]


def named(pid: int, name: str) -> list[int]:
    """Under `pid`, in the order in which they were made."""
    return [one for one in below(pid) if text(f"/proc/{one}/comm").strip() == name]


async def running(jail: Jailer) -> asyncio.Task[Result]:
    """A check that has begun and does not end by itself."""
    begun = asyncio.Event()

    async def one() -> Result:
        source = "import temper_channel, time; temper_channel.write(b'on'); time.sleep(30)"
        async with jail.sandbox.prewarmed.open(source, SMALL) as child:
            assert await child.receive() == b"on"
            begun.set()
            return await child.finish()

    task = asyncio.ensure_future(one())
    await begun.wait()
    return task


@pytest.mark.parametrize("victim", ["temper-check", "nsjail"])
def test_a_killed_server_loses_its_checks_and_is_replaced(jail: Jailer, victim: str) -> None:
    async def lose() -> Result:
        task = await running(jail)
        os.kill(named(jail.sandbox.keeper.pid, victim)[0], signal.SIGKILL)
        return await asyncio.wait_for(task, 8)

    assert printed(jail, "print(1)") == "1"
    before = jail.sandbox.prewarmed.restarts
    result = jail.wait(lose())
    assert result.outcome is Outcome.INFRASTRUCTURE and "fork server is gone" in result.detail, result
    assert printed(jail, "print(2)") == "2"
    assert jail.sandbox.prewarmed.restarts == before + 1
    nothing_left(jail)


def test_a_talk_with_a_lost_check_ends_and_is_a_fault_of_ours(jail: Jailer) -> None:
    async def lose() -> Result:
        async with jail.sandbox.prewarmed.open("import temper_channel as c; c.read()", SMALL) as child:
            os.kill(named(jail.sandbox.keeper.pid, "temper-check")[0], signal.SIGKILL)
            assert await child.receive() is None
            return await child.finish()

    result = jail.wait(lose())
    assert result.outcome is Outcome.INFRASTRUCTURE
    with pytest.raises(SandboxFault):
        result.raise_for_infrastructure()
    nothing_left(jail)


def test_a_killed_process_1_is_a_fault_of_ours(jail: Jailer) -> None:
    async def lose() -> Result:
        task = await running(jail)
        for process in named(jail.sandbox.keeper.pid, "temper-check")[1:]:
            os.kill(process, signal.SIGKILL)
        result = await asyncio.wait_for(task, 8)
        await asyncio.sleep(0.3)  # The prepared ones are seen to be gone too.
        return result

    result = jail.wait(lose())
    assert result.outcome is Outcome.INFRASTRUCTURE and "without a word" in result.detail, result
    assert printed(jail, "print(3)") == "3"
    nothing_left(jail)


@pytest.mark.parametrize("mode", MODES)
def test_a_killed_keeper_loses_checks_and_comes_back(mode: str) -> None:
    with jailer(mode) as jail:

        async def lose() -> Result:
            task = await running(jail)
            os.kill(below(jail.sandbox.keeper.pid)[0], signal.SIGKILL)
            return await asyncio.wait_for(task, 8)

        assert printed(jail, "print(1)") == "1"
        assert jail.wait(lose()).outcome is Outcome.INFRASTRUCTURE
        assert printed(jail, "print(2)") == "2"
        nothing_left(jail)


def test_a_server_that_never_comes_up_is_said_and_not_tried_for_ever(jail: Jailer) -> None:
    prewarmed = jail.sandbox.prewarmed
    jail.wait(prewarmed.close())
    binary, jail.sandbox.nsjail = jail.sandbox.nsjail, "/bin/false"
    try:
        result = jail.wait(prewarmed.run(SLEEPS, SMALL))
    finally:
        jail.sandbox.nsjail = binary
    assert result.outcome is Outcome.INFRASTRUCTURE and "no fork server" in result.detail, result
    assert printed(jail, "print(1)") == "1"
    nothing_left(jail)


def test_a_cancelled_check_is_gone(jail: Jailer) -> None:
    async def cancel() -> None:
        for pause in (0.0, 0.001, 0.005, 0.02, 0.3):
            task = asyncio.ensure_future(jail.sandbox.prewarmed.run(SLEEPS, SMALL))
            await asyncio.sleep(pause)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    jail.wait(cancel())
    nothing_left(jail)


def test_closing_ends_what_runs_as_killed(jail: Jailer) -> None:
    async def close() -> Result:
        task = await running(jail)
        await jail.sandbox.prewarmed.close()
        return await task

    assert jail.wait(close()).outcome is Outcome.KILLED
    nothing_left(jail)


def test_a_reserve_that_is_prepared_is_ready(jail: Jailer) -> None:
    async def prepare() -> int:
        await jail.sandbox.prewarmed.prepare(SMALL)
        await asyncio.sleep(0.3)  # The one that was tried leaves a moment after its report.
        return len(named(jail.sandbox.keeper.pid, "temper-check"))

    assert jail.wait(prepare()) == 1 + 2 * RESERVE
    nothing_left(jail)


@pytest.mark.slow
def test_descriptors_that_run_out_are_a_fault_and_leave_nothing(jail: Jailer) -> None:
    """At every point at which they can: the check ends well or is a fault of ours, and the next one is well."""

    async def short_of(spare: int) -> Result:
        taken = []
        with contextlib.suppress(OSError):
            while len(taken) < 1 << 16:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        try:
            for descriptor in taken[-spare:] if spare else []:
                os.close(descriptor)
            del taken[len(taken) - spare :]
            async with asyncio.timeout(20):
                return await jail.sandbox.prewarmed.run(Check("print(1)", channel=True), SMALL)
        finally:
            for descriptor in taken:
                os.close(descriptor)

    printed(jail, "print(1)")
    nothing_left(jail)
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    outcomes = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        for prepared in (True, False):
            for spare in range(16):
                if not prepared:
                    jail.wait(jail.sandbox.prewarmed.close())
                outcomes.append(jail.wait(short_of(spare)).outcome)
                assert printed(jail, "print(2)") == "2"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert set(outcomes) <= {Outcome.EXITED, Outcome.INFRASTRUCTURE}
    assert outcomes[0] is Outcome.INFRASTRUCTURE and outcomes[15] is Outcome.EXITED
    nothing_left(jail)
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


def test_more_at_once_than_there_are_users(jail: Jailer) -> None:
    from shared.sandbox.prewarmed.forks import Prewarmed

    async def many() -> list[Result]:
        async with Prewarmed(jail.sandbox, reserve=2, users=3) as prewarmed:
            checks = (prewarmed.run(Check(f"print({n})"), SMALL) for n in range(20))
            return list(await asyncio.gather(*checks))

    assert [result.stdout for result in jail.wait(many())] == [b"%d\n" % n for n in range(20)]
    nothing_left(jail)


def test_children_are_open_while_others_come_and_go(jail: Jailer) -> None:
    async def all_of_them() -> list[bytes | None]:
        echo = "import temper_channel as c\nwhile (f := c.read()) is not None: c.write(f)"

        async def ask(child: Child, number: int) -> bytes | None:
            await child.send(b"%d" % number)
            return await child.receive()

        prewarmed = jail.sandbox.prewarmed
        async with prewarmed.open(echo, SMALL) as one, prewarmed.open(echo, SMALL) as two:
            answers = []
            for number in range(5):
                await prewarmed.run(Check("pass"), SMALL)
                answers += await asyncio.gather(ask(one, number), ask(two, -number))
            return answers

    expected = [b"%d" % value for number in range(5) for value in (number, -number)]
    assert jail.wait(all_of_them()) == expected


OURS = """
import asyncio, contextlib, sys
from shared.sandbox.limits import Limits
from shared.sandbox.sandbox import Sandbox
from tests.sandbox.machines import settings_of

SOURCE = "import os, time, temper_channel\\nif os.fork() == 0: os.setsid()\\nelse: temper_channel.write(b'on')\\ntime.sleep(60)"

async def main():
    async with Sandbox(settings_of(sys.argv[1])) as sandbox, contextlib.AsyncExitStack() as stack:
        for _ in range(3):
            opened = sandbox.prewarmed.open(SOURCE, Limits(wall_s=60, processes=8))
            child = await stack.enter_async_context(opened)
            assert await child.receive() == b"on"
        print("keeper", sandbox.keeper.pid, flush=True)
        await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.mark.parametrize("mode", MODES)
def test_nothing_of_our_own_death_remains(mode: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", OURS, mode], stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": "."}
    )
    assert process.stdout is not None
    # Other lines are of the log.
    keeper = next(int(line.split()[1]) for line in process.stdout if line.startswith(b"keeper "))
    family = below(keeper)
    assert len(named(keeper, "temper-check")) >= 10
    process.kill()
    process.wait()
    ends = time.monotonic() + 20
    while (alive := [pid for pid in [keeper, *family] if running_still(pid)]) and time.monotonic() < ends:
        time.sleep(0.05)
    process.stdout.close()
    assert alive == []
    groups = [path for folder in owners_folders() for path in folder.glob(f"{process.pid}-*/*/cgroup.procs")]
    assert all(not path.read_text() for path in groups)
    for path in groups:  # The next start removes such folders; this test leaves nothing to it.
        path.parent.rmdir()
    for folder in owners_folders():
        for path in folder.glob(f"{process.pid}-*"):
            path.rmdir()


def running_still(pid: int) -> bool:
    state = text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return bool(state) and state[0] != "Z"


@pytest.mark.slow
def test_a_thousand_checks_leak_nothing(jail: Jailer) -> None:
    async def some(count: int) -> None:
        limit = asyncio.Semaphore(6)
        sources = [
            "print(1)",
            "import os\nif os.fork() == 0: __import__('time').sleep(9)",
            "1/0",
            "while True: pass",
        ]

        async def one(number: int) -> None:
            async with limit:
                source = sources[number % 3] if number % 100 else sources[3]
                result = await jail.sandbox.prewarmed.run(Check(source), SMALL.within(1.0))
                assert result.outcome is not Outcome.INFRASTRUCTURE, result

        await asyncio.gather(*(one(number) for number in range(1, count + 1)))

    def held() -> tuple[int, int]:
        return len(os.listdir("/proc/self/fd")), len(below(jail.sandbox.keeper.pid))  # noqa: PTH208

    def settled() -> tuple[int, int]:
        for _ in range(100):
            jail.wait(asyncio.sleep(0.02))
        return held()

    jail.wait(some(30))
    before = settled()
    jail.wait(some(1000))
    assert settled() == before
    nothing_left(jail)


FEW = """
import asyncio, resource
resource.setrlimit(resource.RLIMIT_NPROC, (2000, 2000))
resource.setrlimit(resource.RLIMIT_NOFILE, (512, 512))
from shared.sandbox.limits import Limits
from shared.sandbox.prewarmed.child import Check
from shared.sandbox.sandbox import Sandbox
from shared.sandbox.command import Command
from tests.sandbox.machines import settings_of

async def main():
    async with Sandbox(settings_of("{mode}")) as sandbox:
        print((await sandbox.prewarmed.run(Check("print(1)"))).stdout)
        print((await sandbox.run(Command(("echo", "2")), Limits(open_files=4096, processes=4096))).stdout)

asyncio.run(main())
"""


@pytest.mark.parametrize("mode", MODES)
def test_a_machine_with_few_processes_and_descriptors_has_jails_too(mode: str) -> None:
    """The hard limits of a small machine are below what a jail would like."""
    done = subprocess.run(  # noqa: PLW1510 - told by its output
        [sys.executable, "-c", FEW.format(mode=mode)], capture_output=True, text=True, timeout=120
    )
    assert done.stdout.endswith("b'1\\n'\nb'2\\n'\n"), done.stderr  # a reaper may speak first
