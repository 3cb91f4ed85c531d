"""A verifier as a process: a kill loses nothing and leaves nothing behind, SIGTERM drains and ends with 0."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shared.sandbox.cgroups.choose import owners_folders
from shared.sandbox.owners import owner_name
from shared.settings import Settings
from tests.brokers import eventually
from tests.services.bench import Bench, bench
from tests.services.coding import CODING, Coding
from tests.services.trajectories import trajectory
from tests.verification.faulty import FAULTY, Faulty

ROOT = Path(__file__).parents[2]
COPY = Faulty().instance(3)


def started(settings: Settings, worker_id: str, folder: Path) -> tuple[subprocess.Popen[str], list[int]]:
    """The process and its checking children."""
    place = folder / "settings.json"
    place.write_text(settings.model_dump_json())
    process = subprocess.Popen(
        [sys.executable, "-P", str(Path(__file__).with_name("verifier_process.py")), str(place), worker_id],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, cwd=folder, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    while not (line := process.stdout.readline()).startswith("["):
        assert line, "the verifier ended before its children lived"
    return process, json.loads(line)


def gone(pids: list[int]) -> bool:
    """No such process, or only its death notice (whoever inherited it has not read it yet)."""
    for pid in pids:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
                return False
        except (FileNotFoundError, ProcessLookupError):
            continue
    return True


@pytest.mark.slow
def test_a_killed_verifier_loses_nothing_and_leaves_no_child(
    make_settings: Callable[..., Settings], tmp_path: Path
) -> None:
    settings = make_settings(domains=[{"name": FAULTY}], verifier={"children": 2})
    right = Faulty().oracle(COPY)
    attempts = [
        trajectory(settings.run.name, COPY, answer, sample=n, group=f"g-{answer}-{n}")
        for n in range(6)
        for answer in ("slow", right)
    ]
    process, children = started(settings, "verifier-0", tmp_path)
    assert len(children) == 2

    async def feed(it: Bench) -> list[Any]:
        for message in attempts:
            await it.attempt(message)
        before: list[Any] = await it.read(it.names.rewards, bool)
        process.send_signal(signal.SIGKILL)
        process.wait(10)
        assert len(before) < len(attempts), "the kill comes in the middle of the work"
        heir, _ = await asyncio.to_thread(started, settings, "verifier-1", tmp_path)
        try:
            wanted = {message.trajectory_id for message in attempts}
            found = await it.read(
                it.names.rewards, lambda found: wanted <= {d.message.trajectory_id for d in found}, 60.0
            )
        finally:
            heir.send_signal(signal.SIGTERM)
            assert heir.wait(20) == 0
        return found

    async def body() -> list[Any]:
        async with bench(settings) as it:
            return await feed(it)

    found = asyncio.run(body())
    assert {delivery.message.verdict for delivery in found} == {"passed"}
    assert {delivery.message.worker_id for delivery in found} == {"verifier-0", "verifier-1"}
    eventually(lambda: gone(children), what="the end of the killed verifier's children")


def test_sigterm_drains_and_ends_with_zero_and_without_children(
    make_settings: Callable[..., Settings], tmp_path: Path
) -> None:
    settings = make_settings(domains=[{"name": FAULTY}])
    process, children = started(settings, "verifier-0", tmp_path)
    begun = time.monotonic()
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0
    assert time.monotonic() - begun < 15
    assert gone(children)


def descendants(pid: int) -> list[int]:
    """Of a living process, itself not included."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    found, wave = [], {pid}
    while wave:
        wave = {child for child, parent in parents.items() if parent in wave}
        found += sorted(wave)
    return found


@pytest.mark.slow
def test_a_verifier_killed_while_programs_run_leaves_none_of_them(
    make_settings: Callable[..., Settings], tmp_path: Path
) -> None:
    settings = make_settings(domains=[{"name": CODING}], sandbox={"allow_weaker": ["rlimits_only"]})
    instance = Coding().instance(4)
    right = Coding().oracle(instance)
    source = f"import subprocess, time\nsubprocess.Popen(['sleep', '600'])\ntime.sleep(1.5)\n{right}"
    attempts = [trajectory(settings.run.name, instance, source, group=f"g{n}") for n in range(4)]
    process, _ = started(settings, "verifier-0", tmp_path)

    async def feed(it: Bench) -> list[Any]:
        for message in attempts:
            await it.attempt(message)
        async with asyncio.timeout(30):
            while not any(b"sleep\x00600" in command(pid) for pid in descendants(process.pid)):
                await asyncio.sleep(0.05)
        family, owner = descendants(process.pid), owner_name(process.pid)
        assert marks(owner, settings), "nothing in the control groups or the state folder names it"
        process.send_signal(signal.SIGKILL)
        process.wait(10)
        await asyncio.to_thread(eventually, lambda: gone(family), what=f"the end of {len(family)} processes")
        heir, _ = await asyncio.to_thread(started, settings, "verifier-1", tmp_path)
        try:
            wanted = {message.trajectory_id for message in attempts}
            found = await it.read(
                it.names.rewards, lambda found: wanted <= {d.message.trajectory_id for d in found}, 60.0
            )
        finally:
            heir.send_signal(signal.SIGTERM)
            assert heir.wait(20) == 0
        assert marks(owner, settings) == []
        return found

    async def body() -> list[Any]:
        async with bench(settings) as it:
            return await feed(it)

    found = asyncio.run(body())
    assert {(d.message.verdict, d.message.reward) for d in found} == {("passed", 1.0)}


def marks(owner: str, settings: Settings) -> list[Path]:
    """Control groups and folders that carry the name of a process."""
    groups = [folder / owner for folder in owners_folders() if (folder / owner).exists()]
    return groups + list(Path(settings.sandbox.state_folder).glob(f"*{owner}*"))


def command(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""
