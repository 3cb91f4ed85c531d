"""After kill -9 of a process with jails: the kernel takes them, the next start takes the rest."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from shared.sandbox.cgroups.choose import owners_folders
from shared.sandbox.owners import owner_name, owner_of
from shared.sandbox.reaper import reap
from shared.sandbox.sandbox import Sandbox
from shared.sandbox.settings import SandboxSettings

HOLDER = """
import asyncio
from shared.sandbox.command import Command
from shared.sandbox.limits import Limits
from shared.sandbox.sandbox import Sandbox

async def main():
    async with Sandbox() as sandbox:
        session = await sandbox.session({"f": b"x"})
        script = "setsid sleep 4242 & sleep 4242"
        runs = [asyncio.create_task(sandbox.run(Command(("/bin/sh", "-c", script)), Limits(wall_s=100))) for _ in range(3)]
        runs.append(asyncio.create_task(session.exec(Command(("/bin/sh", "-c", script)), Limits(wall_s=100))))
        await asyncio.sleep(1)
        print("held", flush=True)
        await asyncio.gather(*runs)

asyncio.run(main())
"""


def sleepers() -> int:
    count = 0
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            count += path.read_bytes() == b"sleep\x004242\0"
        except OSError:
            continue
    return count


def leftovers(owner: str) -> list[Path]:
    state = Path(SandboxSettings().state_folder)
    groups = [folder / owner for folder in owners_folders() if (folder / owner).exists()]
    return groups + list(state.glob(f"keeper-{owner}-*"))


def test_kill_minus_nine_leaves_nothing_after_the_next_start() -> None:
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", HOLDER], stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": "."}
    )
    # Before it may stand what the start logs of another process's leftovers.
    assert process.stdout is not None and b"held\n" in process.stdout
    owner = owner_name(process.pid)
    assert sleepers() == 8 and leftovers(owner)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    for _ in range(200):
        if not sleepers():
            break
        time.sleep(0.02)
    assert not sleepers(), "the kernel takes every process along with the keeper"
    assert f"keeper-{owner}" not in Path("/proc/self/mountinfo").read_text()

    async def start_again() -> None:
        async with Sandbox():
            pass

    asyncio.run(start_again())
    assert leftovers(owner) == []


def test_the_living_and_strangers_are_left_alone(tmp_path: Path) -> None:
    mine, stranger = f"keeper-{owner_name()}-x", "keeper-1-1-1-x"
    for name in (mine, stranger, "keeper-nonsense", "other"):
        (tmp_path / name).mkdir()
    assert not reap(tmp_path, [tmp_path]).anything
    assert len(list(tmp_path.iterdir())) == 4


def test_a_number_that_was_given_again_is_not_its_first_owner() -> None:
    pid, start, namespace = owner_name().split("-")
    assert owner_of(f"{pid}-{start}-{namespace}") == "alive"
    assert owner_of(f"{pid}-{int(start) - 1}-{namespace}") == "gone"
    assert owner_of(f"{pid}-{start}-{int(namespace) + 1}") == "unknown"
    assert owner_of("temper") == "unknown"


@pytest.mark.parametrize("depth", [1, 3])
def test_groups_go_from_the_deepest(tmp_path: Path, depth: int) -> None:
    gone = tmp_path / f"{os.getpid()}-1-{Path('/proc/self/ns/pid').stat().st_ino}"
    (gone / "/".join("abc"[:depth])).mkdir(parents=True)
    assert reap(tmp_path / "none", [tmp_path]).groups == depth + 1
    assert not gone.exists()
