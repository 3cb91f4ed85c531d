"""Programs that try to get out of a jail, and prying ones, in every way that we run programs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.sandbox.command import Command
from shared.sandbox.limits import Limits
from shared.sandbox.outcome import Outcome, Result
from shared.sandbox.sandbox import Sandbox
from tests.hostile.escapes import ESCAPES, OUTSIDE, program
from tests.sandbox.machines import patient

WAYS = ("jail", "session")
LIMITS = patient(Limits(wall_s=20, cpu_s=10, processes=20))


@pytest.fixture(scope="module")
def listener() -> Iterator[int]:
    """Something on this machine that a jail must not reach."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield int(server.getsockname()[1])


async def run(sandbox: Sandbox, way: str, command: Command) -> Result:
    if way == "session":
        async with await sandbox.session(limits=LIMITS) as session:
            return await session.exec(command)
    return await sandbox.run(command, LIMITS)


def python(source: str, **more: object) -> Command:
    return Command(("python3", "-I", "-c", source), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ESCAPES)
def test_it_is_held(name: str, way: str, listener: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEMPER_TEST_SECRET", "SECRET")

    async def test() -> Result:
        async with Sandbox() as sandbox:
            return await run(sandbox, way, python(program(name, listener)))

    result = asyncio.run(test())
    assert result.outcome is Outcome.EXITED, result
    assert result.stdout == b"held\n", result.stdout.decode(errors="replace") + result.stderr.decode(
        errors="replace"
    )


@pytest.mark.parametrize("name", OUTSIDE)
def test_outside_of_a_jail_it_gets_out(name: str, listener: int) -> None:
    """Otherwise the program would be held by anything."""
    if os.geteuid():
        pytest.fail("the sandbox and its tests need root")
    done = subprocess.run(
        # A mount namespace of its own: one of them mounts over /tmp, and may fail to take that off again.
        ["unshare", "--mount", sys.executable, "-I", "-c", program(name, listener)],
        capture_output=True, text=True, timeout=25, check=False,
        stdin=subprocess.DEVNULL, env={"TEMPER_TEST_SECRET": "SECRET"},
    )  # fmt: skip
    assert "OUT: " in done.stdout, done.stdout + done.stderr


ARTIFACTS = """
import os
os.symlink("/etc/passwd", "link")
os.symlink("/proc/self/environ", "proc")
os.symlink("../../../../etc/shadow", "up")
os.makedirs("d"); os.symlink("/etc", "d/etc")
try: os.link("/etc/passwd", "hard")
except OSError: pass
os.mkfifo("fifo")
try: os.mknod("device", 0o20666, os.makedev(1, 3))
except OSError: pass
with open("sparse", "wb") as file:
    try: file.truncate(1 << 50)
    except OSError: pass
open("plain", "w").write("fine")
os.mkdir("folder")
"""


@pytest.mark.parametrize("way", WAYS)
def test_only_plain_files_come_out(way: str) -> None:
    names = (
        "link",
        "proc",
        "up",
        "d/etc/passwd",
        "hard",
        "fifo",
        "device",
        "sparse",
        "folder",
        "absent",
        "plain",
    )

    async def test() -> Result:
        async with Sandbox() as sandbox:
            return await run(sandbox, way, python(ARTIFACTS, collect=names))

    result = asyncio.run(test())
    assert result.ok, result
    # The pebibyte was refused when it was asked for: what is left of it is an empty plain file.
    assert {name: bytes(content) for name, content in result.artifacts.items()} == {
        "plain": b"fine",
        "sparse": b"",
    }


LEAVE = """
import fcntl, os, socket, subprocess
for folder in ("/tmp", "/dev/shm", "/work"):
    open(folder + "/left", "w").write("left")
server = socket.socket(socket.AF_UNIX); server.bind("\\0left"); server.listen()
subprocess.run(["ipcmk", "-M", "4096"], capture_output=True)
lock = open("/usr/bin/env"); fcntl.flock(lock, fcntl.LOCK_EX)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        import time; time.sleep(60)
    os._exit(0)
print("left")
"""
LOOK = """
import fcntl, os, socket, subprocess
outs = []
for folder in ("/tmp", "/dev/shm", "/work"):
    if os.path.exists(folder + "/left"): outs.append(folder)
try: socket.socket(socket.AF_UNIX).connect("\\0left"); outs.append("socket")
except OSError: pass
if "0x" in subprocess.run(["ipcs", "-m"], capture_output=True, text=True).stdout: outs.append("ipc")
lock = open("/usr/bin/env"); fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
if len([p for p in os.listdir("/proc") if p.isdigit()]) > 6: outs.append("processes")
print(outs or "clean")
"""


def test_a_run_finds_nothing_of_the_one_before() -> None:
    async def test() -> tuple[Result, Result]:
        async with Sandbox() as sandbox:
            return await sandbox.run(python(LEAVE), LIMITS), await sandbox.run(python(LOOK), LIMITS)

    left, look = asyncio.run(test())
    assert left.stdout == b"left\n", left
    assert left.left_behind >= 1
    assert look.stdout == b"clean\n", look


def test_two_at_once_do_not_see_each_other() -> None:
    hold = LEAVE + "import time; time.sleep(3)"

    async def test() -> Result:
        async with Sandbox() as sandbox:
            holder = asyncio.create_task(sandbox.run(python(hold), LIMITS))
            await asyncio.sleep(1.5)  # a late start of the first only makes the second's look emptier
            look = await sandbox.run(python(LOOK.replace("fcntl.flock", "(lambda *_: None)")), LIMITS)
            await holder
            return look

    assert asyncio.run(test()).stdout == b"clean\n"


def test_nothing_of_ours_is_in_a_root() -> None:
    source = "import sys\nfor n in ('shared', 'services', 'temper', 'torch', 'kafka'):\n try: __import__(n); print(n)\n except ImportError: pass"

    async def test() -> Result:
        async with Sandbox() as sandbox:
            return await sandbox.run(Command(("python3", "-c", source)), LIMITS)

    result = asyncio.run(test())
    assert result.ok and result.stdout == b"", result


def test_the_program_is_nobody_outside() -> None:
    """Its files and processes belong to a user that this machine does not have."""

    async def test() -> set[int]:
        async with Sandbox() as sandbox:
            run = asyncio.create_task(sandbox.run(Command(("/bin/sleep", "4243")), Limits(wall_s=60)))
            users = set[int]()
            while not users and not run.done():
                await asyncio.sleep(0.05)
                users = {path.stat().st_uid for path in sleepers()}
            run.cancel()
            await asyncio.wait([run])
            return users

    users = asyncio.run(test())
    assert users and all(user >= 99_000_000 for user in users), users
    assert not any(entry.pw_uid in users for entry in pwd.getpwall())


def sleepers() -> Iterator[Path]:
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (path / "cmdline").read_bytes() == b"/bin/sleep\x004243\0":
                yield path
