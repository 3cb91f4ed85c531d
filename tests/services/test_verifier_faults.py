"""Faults of ours, injected into a working verifier: no reward is ever a number because of one, and work goes on."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from services.verifier.service import VerifierService
from shared.bus.records import header
from shared.contracts import Reward, Trajectory
from shared.sandbox.binary import find_nsjail
from shared.sandbox.cgroups.choose import owners_folders
from shared.sandbox.owners import owner_name
from shared.settings import Settings
from shared.storage import ObjectStore
from tests.brokers import Broker, running_broker, settings_for
from tests.services.bench import Bench, bench, verifying
from tests.services.coding import CODING, Coding
from tests.services.trajectories import trajectory
from tests.verification.faulty import FAULTY, Faulty
from tests.verification.sandboxed import PRINTING, Printing, methods

MakeSettings = Callable[..., Settings]
CODE = Coding().instance(4)
NUMBER = Printing().instance(5)
COPY = Faulty().instance(3)
QUIET = {"share": 0.0, "repeat_share": 0.0, "rules": []}


def coding(make_settings: MakeSettings, **sandbox: object) -> Settings:
    return make_settings(
        domains=[{"name": CODING}],
        auditor=QUIET,
        sandbox={"allow_weaker": ["rlimits_only"], **sandbox},
        bus={"retry_delays_s": [0.5, 1.0], "max_attempts": 4},
    )


def right(settings: Settings, group: str = "g") -> Trajectory:
    return trajectory(settings.run.name, CODE, Coding().oracle(CODE), group=group)


async def only_faults(it: Bench, attempts: list[Trajectory], words: str) -> None:
    """Every attempt ends as a fault without a number, and as a dead letter."""
    rewards = await it.rewards(len(attempts))
    for message in attempts:
        reward = rewards[message.trajectory_id]
        assert (reward.verdict, reward.reward) == ("infrastructure", None), reward
        assert words in reward.reason, reward.reason
    dead = await it.read(it.names.dead("verifier"), lambda seen: len(seen) >= len(attempts))
    assert {d.message.trajectory_id for d in dead} == {message.trajectory_id for message in attempts}


async def first_failure(it: Bench) -> None:
    """Until the verifier has met the fault once."""
    await it.read(it.names.workers, lambda seen: any(d.message.failures for d in seen))


async def passes(it: Bench, message: Trajectory) -> Reward:
    reward = (await it.rewards(1))[message.trajectory_id]
    assert (reward.verdict, reward.reward) == ("passed", 1.0), reward
    return reward


def test_a_jail_binary_that_is_missing_is_a_fault(make_settings: MakeSettings, tmp_path: Path) -> None:
    settings = coding(make_settings, nsjail=str(tmp_path / "nsjail"))
    attempts = [right(settings, f"g{n}") for n in range(3)]

    async def body() -> None:
        async with bench(settings) as it, verifying(settings):
            for message in attempts:
                await it.attempt(message)
            await only_faults(it, attempts, str(tmp_path / "nsjail"))

    asyncio.run(body())


def test_a_jail_binary_that_comes_back_in_time_costs_a_retry(
    make_settings: MakeSettings, tmp_path: Path
) -> None:
    settings = coding(make_settings, nsjail=str(tmp_path / "nsjail"))
    message = right(settings)

    async def body() -> None:
        async with bench(settings) as it, verifying(settings):
            await it.attempt(message)
            wanted = f"a sandbox: sandbox.nsjail is {str(tmp_path / 'nsjail')!r}"
            await it.read(it.names.workers, lambda seen: any(wanted in d.message.waits_for for d in seen))
            (tmp_path / "nsjail").symlink_to(find_nsjail())
            assert (await passes(it, message)).attempts > 1

    asyncio.run(body())


def test_a_jail_binary_that_breaks_while_the_verifier_works_is_a_fault_until_it_is_mended(
    make_settings: MakeSettings, tmp_path: Path
) -> None:
    binary = tmp_path / "nsjail"
    binary.symlink_to(find_nsjail())
    settings = coding(make_settings, nsjail=str(binary))
    before, after = right(settings, "g-before"), right(settings, "g-after")

    async def body() -> None:
        async with bench(settings) as it, running(settings) as service:
            await it.attempt(before)
            await passes(it, before)
            box = service._jails._box
            assert box is not None
            binary.unlink()
            os.kill(box.keeper.pid, signal.SIGKILL)  # the prepared jails go with it: new ones need the binary
            await it.attempt(after)
            await first_failure(it)
            binary.symlink_to(find_nsjail())
            rewards = await it.rewards(2)
            assert (rewards[after.trajectory_id].verdict, rewards[after.trajectory_id].reward) == (
                "passed",
                1.0,
            )

    asyncio.run(body())


@contextlib.asynccontextmanager
async def running(settings: Settings) -> AsyncIterator[VerifierService]:
    """As `verifying`, with the service in reach."""
    stop = asyncio.Event()
    service = VerifierService(settings, "verifier-0")
    task = asyncio.create_task(service.run(stop))
    try:
        yield service
    finally:
        stop.set()
        await asyncio.wait_for(task, 20.0)


def dissolve_groups() -> int:
    """Takes this process's control groups away, what runs inside is moved out; how many went that had processes."""
    emptied = 0
    for folder in owners_folders():
        mine = folder / owner_name()
        inner = [entry for entry in mine.iterdir() if entry.is_dir()] if mine.is_dir() else []
        for group in inner:
            with contextlib.suppress(OSError):  # its run may end at this very moment
                inside = (group / "cgroup.procs").read_text().split()
                for pid in inside:
                    (folder.parent / "cgroup.procs").write_text(pid)
                group.rmdir()
                emptied += bool(inside)
    return emptied


def test_control_groups_that_are_gone_are_a_fault_or_made_again(make_settings: MakeSettings) -> None:
    """Everything inside is moved out and the folders removed, as a machine's manager that tidies up would."""
    settings = make_settings(
        domains=[{"name": PRINTING}], auditor=QUIET, sandbox={"allow_weaker": ["rlimits_only"]},
        bus={"retry_delays_s": [0.5, 1.0], "max_attempts": 4},
    )  # fmt: skip
    slow = f"import time\ntime.sleep(1.5)\nprint({NUMBER.expected})"
    before = trajectory(settings.run.name, NUMBER, slow, group="g-before")
    after = trajectory(settings.run.name, NUMBER, Printing().oracle(NUMBER), group="g-after")

    async def body() -> None:
        async with bench(settings) as it, verifying(settings, methods=methods):
            await it.attempt(before)
            async with asyncio.timeout(20):
                while not dissolve_groups():
                    await asyncio.sleep(0.05)
            await it.attempt(after)
            rewards = await it.rewards(2)
            assert {(r.verdict, r.reward) for r in rewards.values()} == {("passed", 1.0)}, rewards

    if not owners_folders():
        pytest.skip("this machine lends no control groups: there is nothing to take away")
    asyncio.run(body())


@contextlib.contextmanager
def full_disk(folder: Path) -> Iterator[Path]:
    """A file system of 64 KiB and two dozen inodes without a free byte."""
    folder.mkdir()
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k,nr_inodes=24,mode=711", "none", str(folder)], check=True
    )
    try:
        with contextlib.suppress(OSError), (folder / "filler").open("wb") as filler:
            while True:
                filler.write(b"\0" * 4096)
                filler.flush()
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_under_the_sandbox_s_state_is_a_fault(
    make_settings: MakeSettings, tmp_path: Path
) -> None:
    with full_disk(tmp_path / "state") as state:
        for number in range(100):  # and without a free inode: folders cost no block there
            try:
                (state / f"inode-{number}").mkdir()
            except OSError:
                break
        else:
            pytest.fail("the disk never filled up")
        settings = coding(make_settings, state_folder=str(state / "sandbox"))
        attempts = [right(settings)]

        async def body() -> None:
            async with bench(settings) as it, verifying(settings):
                await it.attempt(attempts[0])
                await only_faults(it, attempts, "No space left")

        asyncio.run(body())


def test_killed_children_and_a_killed_keeper_cost_a_retry(make_settings: MakeSettings) -> None:
    settings = make_settings(
        domains=[{"name": FAULTY}, {"name": CODING}], auditor=QUIET,
        verifier={"children": 2}, sandbox={"allow_weaker": ["rlimits_only"]},
    )  # fmt: skip
    slow = [trajectory(settings.run.name, COPY, "slow", group=f"g{n}") for n in range(2)]
    code = [
        trajectory(
            settings.run.name, CODE, f"import time\ntime.sleep(1)\n{Coding().oracle(CODE)}", group=f"c{n}"
        )
        for n in range(2)
    ]

    async def body() -> None:
        async with bench(settings) as it, running(settings) as service:
            for message in (*slow, *code):
                await it.attempt(message)
            await it.read(it.names.workers, lambda seen: any(d.message.in_flight >= 4 for d in seen))
            for pid in service._pool.pids:
                os.kill(pid, signal.SIGKILL)
            async with asyncio.timeout(20):
                while service._jails._box is None or not service._jails.running:
                    await asyncio.sleep(0.02)
            os.kill(service._jails._box.keeper.pid, signal.SIGKILL)
            rewards = await it.rewards(4)
            assert {(r.verdict, r.reward) for r in rewards.values()} == {("passed", 1.0)}, rewards
            assert any(reward.attempts > 1 for reward in rewards.values())

    asyncio.run(body())


def test_a_body_that_is_missing_in_the_object_store_is_a_dead_letter_and_no_reward(
    make_settings: MakeSettings,
) -> None:
    settings = coding(make_settings)
    settings = settings.model_copy(
        update={"bus": settings.bus.model_copy(update={"claim_check_bytes": 1024})}
    )
    lost = trajectory(settings.run.name, CODE, Coding().oracle(CODE) + "\n# " + "x" * 4000, group="g-lost")
    sound = trajectory(settings.run.name, CODE, Coding().oracle(CODE) + "\n# " + "y" * 4000, group="g-sound")

    async def body() -> None:
        async with bench(settings) as it:
            it.producer._store = ObjectStore(settings.storage_uri)
            await it.attempt(lost)
            (record,) = await it.read(it.names.trajectories("single_turn", "normal"), bool)
            uri = json.loads(header(record.record.headers, "claim"))["uri"]
            Path(uri.removeprefix("file://")).unlink()
            await it.attempt(sound)
            async with verifying(settings):
                assert set(await it.rewards(1)) == {sound.trajectory_id}
                await it.read(
                    it.names.workers, lambda seen: any(d.message.gauges.get("dead") for d in seen), 30.0
                )
            assert set(await it.rewards(1)) == {sound.trajectory_id}

    asyncio.run(body())


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[Broker]:
    with running_broker("devbroker", tmp_path / "own") as broker:
        yield broker


@pytest.mark.slow
def test_a_broker_that_is_killed_and_comes_back_loses_no_verdict(own_broker: Broker, tmp_path: Path) -> None:
    settings = settings_for(
        own_broker, tmp_path, domains=[{"name": CODING}], auditor=QUIET,
        sandbox={"allow_weaker": ["rlimits_only"]},
    )  # fmt: skip
    attempts = [right(settings, f"g{n}") for n in range(12)]

    async def body() -> None:
        async with bench(settings) as it, verifying(settings):
            for message in attempts[:6]:
                await it.attempt(message)
            await it.read(it.names.rewards, bool)
            await asyncio.to_thread(own_broker.kill)
            await asyncio.sleep(1.0)
            await asyncio.to_thread(own_broker.start)
            for message in attempts[6:]:
                await it.attempt(message)
            wanted = {message.trajectory_id for message in attempts}
            found = await it.read(
                it.names.rewards, lambda seen: wanted <= {d.message.trajectory_id for d in seen}, 90.0
            )
            assert {(d.message.verdict, d.message.reward) for d in found} == {("passed", 1.0)}

    asyncio.run(body())
