"""What a run is given, what it gives back, and what becomes of it when somebody else ends it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.errors import ConfigError
from shared.sandbox.command import Command
from shared.sandbox.faults import SandboxFault, SandboxUnavailable
from shared.sandbox.keeper.mounts import MASKED
from shared.sandbox.limits import Limits
from shared.sandbox.outcome import Outcome, Result
from shared.sandbox.sandbox import Sandbox
from shared.sandbox.sessions.files import WorkspaceRefusal
from tests.sandbox.machines import MODES, Jailer, jailer, settings_of

LIMITS = Limits(wall_s=20, memory_mb=64, processes=16)


@pytest.fixture(scope="module", params=MODES)
def jail(request: pytest.FixtureRequest) -> Iterator[Jailer]:
    with jailer(request.param) as made:
        yield made


def sh(text: str, **more: object) -> Command:
    return Command(("sh", "-c", text), **more)  # type: ignore[arg-type]


def test_input_files_environment_and_folder(jail: Jailer) -> None:
    command = Command(
        ("sh", "-c", 'pwd; cat; cat /work/a/b.txt; echo "$GIVEN $HOME"; id -u'),
        environment={"GIVEN": "a b"}, cwd="/tmp", stdin=b"in\n", files={"a/b.txt": b"file\n"},
    )  # fmt: skip
    result = jail.run(command, LIMITS)
    assert result.stdout == b"/tmp\nin\nfile\na b /work\n1000\n" and result.ok
    assert result.usage.stdout_bytes == len(result.stdout)
    # Without groups it is over before the second look at it.
    assert result.usage.processes_peak >= 1 or jail.mode == "none"


def test_input_and_streams_can_be_opened_by_name(jail: Jailer) -> None:
    result = jail.run(sh("cat /dev/stdin > /dev/stdout; echo told > /dev/stderr", stdin=b"in\n"), LIMITS)
    assert (result.ok, result.stdout, result.stderr) == (True, b"in\n", b"told\n"), result


def test_artifacts_are_plain_files_inside_the_work_folder(jail: Jailer) -> None:
    command = sh(
        "echo one > one; ln -s /etc/passwd link; ln -s one inner; mkfifo pipe; mkdir folder; ln one hard; "
        "mkdir up; ln -s /etc up/etc",
        collect=("one", "link", "inner", "pipe", "folder", "hard", "missing", "up/etc/passwd"),
    )
    result = jail.run(command, LIMITS)
    assert result.artifacts == {"one": b"one\n", "hard": b"one\n"}


def test_a_large_input_and_output_at_once(jail: Jailer) -> None:
    content = os.urandom(300_000)
    result = jail.run(Command(("cat",), stdin=content), Limits(output_kb=1000))
    assert result.stdout == content and not result.stdout_truncated


def test_output_over_the_cap_is_cut_and_counted(jail: Jailer) -> None:
    result = jail.run(sh("head -c 20000 /dev/zero; head -c 100 /dev/zero >&2"), Limits(output_kb=8))
    assert result.ok and len(result.stdout) == 8192 and result.stdout_truncated
    assert (result.usage.stdout_bytes, result.stderr_truncated) == (20_000, False)


@pytest.mark.parametrize(
    ("argv", "code"), [(("nothing-of-that-name",), 127), (("/work/nothing",), 127), (("/usr",), 126)]
)
def test_a_program_that_is_not_there_is_what_a_shell_says(
    jail: Jailer, argv: tuple[str, ...], code: int
) -> None:
    result = jail.run(Command(argv), LIMITS)
    assert (result.outcome, result.exit_code) == (Outcome.EXITED, code)


def test_a_folder_that_is_not_there(jail: Jailer) -> None:
    result = jail.run(Command(("true",), cwd="/nowhere"), LIMITS)
    assert (result.outcome, result.exit_code) == (Outcome.EXITED, 127)
    assert "/nowhere" in result.detail


@pytest.mark.parametrize("size", [100_000, 140_000, 300_000])
def test_arguments_that_no_kernel_takes(jail: Jailer, size: int) -> None:
    result = jail.run(Command(("echo", "x" * size, "x" * size)), LIMITS)
    assert (result.outcome, result.exit_code, result.detail) == (
        Outcome.EXITED,
        126,
        "argument list too long",
    )


def test_arguments_of_a_hundred_kilobytes(jail: Jailer) -> None:
    assert jail.run(Command(("sh", "-c", "echo ${#1}", "x", "y" * 100_000)), LIMITS).stdout == b"100000\n"


@pytest.mark.parametrize(
    "make",
    [
        lambda: Command(()),
        lambda: Command(("a\0b",)),
        lambda: Command(("\ud800",)),
        lambda: Command(("a",), environment={"A=B": "c"}),
        lambda: Command(("a",), environment={"A": "\0"}),
        lambda: Command(("a",), cwd="work"),
        lambda: Command(("a",), files={"../a": b""}),
        lambda: Command(("a",), collect=("/etc/passwd",)),
    ],
)
def test_commands_that_cannot_be(make: object) -> None:
    with pytest.raises(ConfigError):
        make()  # type: ignore[operator]


def test_files_that_do_not_fit_are_refused(jail: Jailer) -> None:
    with pytest.raises(WorkspaceRefusal):
        jail.run(Command(("true",), files={"a": b"x" * (2 << 20)}), Limits(disk_mb=1))
    assert jail.leftovers() == []


def test_an_unknown_root_is_named(jail: Jailer) -> None:
    with pytest.raises(ConfigError, match="nowhere"):
        jail.wait(jail.sandbox.run(Command(("true",)), root="nowhere"))


def test_runs_beside_each_other_do_not_mix(jail: Jailer) -> None:
    async def many() -> list[Result]:
        return await asyncio.gather(
            *(
                jail.sandbox.run(sh(f"echo {n} > /tmp/n; sleep 0.1; cat /tmp/n; ls /work"), LIMITS)
                for n in range(12)
            )
        )

    assert [result.stdout for result in jail.wait(many())] == [f"{n}\n".encode() for n in range(12)]
    assert jail.leftovers() == []


def test_a_workspace_that_was_full_before_is_no_reason(jail: Jailer) -> None:
    async def work() -> list[Outcome]:
        small = Limits(disk_mb=4, memory_mb=64)
        async with await jail.sandbox.session(limits=small) as session:
            commands = [
                sh("head -c 9000000 /dev/zero > full"), sh("false"), sh("head -c 9000000 /dev/zero > more"), sh("true"),
                sh("rm full more"), sh("head -c 9000000 /dev/zero > /tmp/x"),
            ]  # fmt: skip
            return [(await session.exec(command)).outcome for command in commands]

    disk, exited = Outcome.DISK_LIMIT, Outcome.EXITED
    assert jail.wait(work()) == [disk, exited, disk, exited, exited, disk]


def test_what_tells_of_the_machine_is_covered(jail: Jailer) -> None:
    covered = " ".join(f"/proc/{name}" for name in MASKED)
    result = jail.run(
        sh(f"cat {covered} 2>/dev/null | wc -c; ls /proc/bus /proc/fs /proc/irq | grep -v :"), LIMITS
    )
    assert result.stdout.split() == [b"0"], result
    needed = "cpuinfo meminfo stat loadavg uptime mounts self/status self/maps sys/kernel/ostype"
    read = jail.run(
        sh(f"cd /proc; for one in {needed}; do test -s $one || head -c1 $one >/dev/null; done"), LIMITS
    )
    assert read.ok and not read.stderr, read


def test_a_run_sees_its_own_processes_alone(jail: Jailer) -> None:
    result = jail.run(
        sh("cd /proc; for one in [0-9]*; do cat $one/comm; done; kill -0 1 2>&1; kill -0 2 2>&1"), LIMITS
    )
    assert {line for line in result.stdout.split(b"\n") if b":" not in line} == {b"sh", b""}, result
    assert result.stdout.count(b"not permitted") == 2


def test_a_run_holds_nothing_of_others(jail: Jailer) -> None:
    """A copy of another session's layers would keep them in use: it could not be snapshot while this one runs."""

    async def work() -> list[bytes]:
        sandbox, seen = jail.sandbox, []
        async with await sandbox.session() as first, await sandbox.session() as second:
            fork = await first.fork()
            for session in (second, fork):
                assert (await session.exec(sh("echo 1 > f; ln f g"))).ok
            long = asyncio.ensure_future(first.exec(sh("sleep 60"), Limits(wall_s=60)))
            await started(sandbox)
            for session in (second, fork):
                snapshot = await session.snapshot()
                assert (await session.exec(sh("echo 2 > f"))).ok
                await session.roll_back(snapshot)
                seen.append((await session.exec(sh("cat f g"))).stdout)
            assert not long.done(), "it must have run all the while"
            long.cancel()
            with pytest.raises(asyncio.CancelledError):
                await long
            await fork.close()
            return seen

    assert jail.wait(work()) == [b"1\n1\n"] * 2


def test_a_cancelled_run_is_cleared_away_first(jail: Jailer) -> None:
    async def cancelled(after_s: float) -> None:
        task = asyncio.ensure_future(jail.sandbox.run(sh("sleep 60 & setsid sleep 60"), LIMITS))
        await asyncio.sleep(after_s)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    for after_s in (0.0, 0.001, 0.01, 0.1):
        jail.wait(cancelled(after_s))
        assert jail.leftovers() == []


def test_closing_the_sandbox_ends_its_runs_as_killed() -> None:
    async def work(sandbox: Sandbox, wait: bool) -> Result:
        task = asyncio.ensure_future(sandbox.run(sh("sleep 60"), Limits(wall_s=60)))
        if wait:
            await started(sandbox)
        else:
            await asyncio.sleep(0)
        await sandbox.close()
        return await task

    for mode in MODES:
        for wait in (True, False):
            with jailer(mode) as made:
                assert made.wait(work(made.sandbox, wait)).outcome is Outcome.KILLED
                with pytest.raises(SandboxFault):
                    made.wait(made.sandbox.ready())


def test_a_lost_keeper_is_no_verdict_and_comes_back_once() -> None:
    async def lose(sandbox: Sandbox) -> Result:
        task = asyncio.ensure_future(sandbox.run(sh("sleep 60"), Limits(wall_s=60)))
        await started(sandbox)
        below = _below(sandbox.keeper.pid)
        os.kill(sandbox.keeper.pid, signal.SIGKILL)
        result = await task
        programs = [pid for pid in below if _command(pid) == "sleep"]
        assert programs == [], "a run is over, and its program is not"
        return result

    for mode in MODES:
        with jailer(mode) as made:
            lost = made.wait(lose(made.sandbox))
            assert lost.outcome is Outcome.INFRASTRUCTURE and "keeper" in lost.detail
            with pytest.raises(SandboxFault):
                lost.raise_for_infrastructure()
            assert made.run(sh("echo back"), LIMITS).stdout == b"back\n"
            assert made.leftovers() == []
            made.wait(lose(made.sandbox))
            again = made.run(sh("echo back"), LIMITS)
            assert again.outcome is Outcome.INFRASTRUCTURE and "lost again" in again.detail


def test_a_binary_that_is_not_there_or_does_nothing(tmp_path: Path) -> None:
    with pytest.raises(SandboxUnavailable, match=r"sandbox\.nsjail"):
        Sandbox(settings_of(MODES[0], nsjail=str(tmp_path / "nsjail")))
    idle = tmp_path / "nsjail"
    idle.write_text("#!/bin/sh\nexit 0\n")
    idle.chmod(0o755)
    with jailer(MODES[0], nsjail=str(idle)) as made:
        result = made.run(Command(("true",)), LIMITS)
        assert result.outcome is Outcome.INFRASTRUCTURE and "did not say" in result.detail
        idle.unlink()
        result = made.run(Command(("true",)), LIMITS)
        assert result.outcome is Outcome.INFRASTRUCTURE and "No such file" in result.detail
        assert made.leftovers() == []


@pytest.mark.skipif("v1" not in MODES and "v2" not in MODES, reason="no cgroups on this machine")
def test_counters_that_vanish_are_no_verdict() -> None:
    """Somebody removes the group under a run that has just been killed: nothing is known, so nothing is judged."""

    async def vanish(sandbox: Sandbox) -> Result:
        groups = sandbox.cgroups
        made = []
        make = groups.make

        def watched(limits: Limits) -> object:
            made.append(make(limits))
            return made[-1]

        groups.make = watched  # type: ignore[method-assign, assignment]
        task = asyncio.ensure_future(sandbox.run(sh("sleep 60"), Limits(wall_s=60)))
        await started(sandbox)
        for group in made:
            await group.remove()
        return await task

    with jailer(next(mode for mode in MODES if mode != "none")) as made:
        result = made.wait(vanish(made.sandbox))
        assert result.outcome is Outcome.INFRASTRUCTURE and result.detail
        assert made.leftovers() == []


def test_no_descriptors_left_is_a_fault_of_ours_and_costs_none(jail: Jailer) -> None:
    def count() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    jail.run(Command(("true",)), LIMITS)
    before = count()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    outcomes = []
    for room in range(12):
        resource.setrlimit(resource.RLIMIT_NOFILE, (before + room, hard))
        try:
            result = jail.run(Command(("true",), files={"a": b"x"}, collect=("a",)), LIMITS)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert result.outcome is Outcome.INFRASTRUCTURE or result.ok, result
        assert (count(), jail.leftovers()) == (before, [])
        outcomes.append(result.outcome)
    assert outcomes[0] is Outcome.INFRASTRUCTURE
    assert jail.run(Command(("true",)), LIMITS).ok


ORPHAN = """
import asyncio, sys
from tests.sandbox.machines import settings_of
from tests.sandbox.test_run import started
from shared.sandbox.sandbox import Sandbox
from shared.sandbox.command import Command
from shared.sandbox.limits import Limits

async def main():
    async with Sandbox(settings_of(sys.argv[1])) as sandbox:
        runs = [sandbox.run(Command(("sh", "-c", "echo x > /work/x; setsid sleep 77 & sleep 77")), Limits(wall_s=60)) for _ in range(3)]
        tasks = [asyncio.ensure_future(run) for run in runs]
        await started(sandbox, 6)
        print("folder", sandbox.keeper.folder, flush=True)
        await asyncio.gather(*tasks)

asyncio.run(main())
"""


@pytest.mark.parametrize("mode", MODES)
def test_when_we_are_killed_the_kernel_takes_everything_along(mode: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", ORPHAN, mode], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
    )
    assert process.stdout is not None
    folder = next(line.split()[1] for line in process.stdout if line.startswith("folder "))
    keepers = _below(process.pid)
    assert len(keepers) >= 8
    process.kill()
    process.wait()
    process.stdout.close()
    for _ in range(200):
        if not any(map(_alive, keepers)):
            break
        with contextlib.suppress(InterruptedError):
            signal.sigtimedwait([], 0.02)
    assert not [pid for pid in keepers if _alive(pid)]
    # Another sandbox of this machine may have removed the folder meanwhile.
    assert not list(Path(folder).glob("*")), "a mount outlived us"


async def started(sandbox: Sandbox, count: int = 1) -> None:
    """Returns once so many `sleep` run in jails."""
    while [_command(pid) for pid in _below(sandbox.keeper.pid)].count("sleep") < count:
        await asyncio.sleep(0.01)


def _alive(pid: int) -> bool:
    """An ended one that its new parent has not collected yet is not."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0] not in "ZX"
    return False


def _command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def _below(ancestor: int) -> set[int]:
    """All processes below one."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
                parents[int(entry.name)] = int(fields[1])
    found = {ancestor}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {ancestor}
