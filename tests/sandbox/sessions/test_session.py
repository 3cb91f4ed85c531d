"""Sessions in real jails: what a snapshot keeps, to the time stamp and the link."""

from __future__ import annotations

import asyncio
import os
import random
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from shared.errors import ConfigError
from shared.sandbox.command import Command
from shared.sandbox.limits import Limits
from shared.sandbox.outcome import Outcome
from shared.sandbox.sandbox import Sandbox
from shared.sandbox.sessions import session as session_module
from shared.sandbox.sessions.files import Entry, WorkspaceRefusal
from shared.sandbox.sessions.session import Session

State = tuple[list[Entry], dict[str, bytes]]


def within(test: Callable[[Sandbox], Awaitable[None]]) -> None:
    async def run() -> None:
        async with Sandbox() as sandbox:
            await test(sandbox)

    asyncio.run(run())


def sh(script: str) -> Command:
    return Command(("/bin/sh", "-ec", script))


async def state(session: Session) -> State:
    entries = await session.listing()
    files = [entry.path for entry in entries if entry.kind == "file"]
    return entries, {path: await session.read(path) for path in files}


TREE = """
mkdir -p a/deep/er empty
printf one > a/one; printf two > a/deep/two; ln a/one a/hard; ln -s ../a/one a/soft; ln -s /etc/passwd a/out
chmod 751 a/deep; chmod 600 a/deep/two; touch -d '2001-02-03 04:05:06.789' a/deep/two a/deep empty .
mkfifo a/pipe
"""


def test_a_rollback_brings_back_tree_modes_times_and_links() -> None:
    async def test(sandbox: Sandbox) -> None:
        async with await sandbox.session({"given.txt": b"given"}) as session:
            assert (await session.exec(sh(TREE))).ok
            before = await state(session)
            snapshot = await session.snapshot()
            assert await state(session) == before
            changes = "printf x >> a/hard; rm -r a/deep; mv a b; ln -sf nowhere given.txt; chmod 777 empty; touch new"
            done = await session.exec(sh(changes))
            assert done.ok, done.stderr
            assert await state(session) != before
            await session.roll_back(snapshot)
            assert await state(session) == before
            await session.roll_back(snapshot)
            assert await state(session) == before

    within(test)


def test_hard_links_stay_one_file_across_snapshots() -> None:
    """overlayfs breaks a hard link at the first write unless the names come up together."""

    async def test(sandbox: Sandbox) -> None:
        async with await sandbox.session() as session:
            await session.exec(sh("printf a > one; ln one two; mkdir d; ln one d/three"))
            await session.snapshot()
            await session.exec(sh("printf b >> two"))
            await session.snapshot()
            await session.snapshot()
            assert await session.read("one") == b"ab" and await session.read("d/three") == b"ab"
            assert (await session.exec(sh("stat -c %h one"))).stdout == b"3\n"

    within(test)


def test_random_programs_agree_with_copies() -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    draw = random.Random(seed)

    def step() -> str:
        name, other = draw.choice("abcd"), draw.choice("abcd")
        return draw.choice(
            [
                f"printf {draw.random()} >> {name} || true", f"rm -rf {name}", f"mkdir -p {name}/{other} || true",
                f"mv {name} {other} || true", f"ln -sfn {name} {other} || true", f"chmod {draw.choice(['700', '755'])} {name} || true",
                f"ln {name} {other} || true", f"printf {draw.random()} > {name}/{other} || true",
            ]
        )  # fmt: skip

    async def test(sandbox: Sandbox) -> None:
        async with await sandbox.session() as first:
            sessions, kept = [first], list[tuple[str, State]]()
            for _ in range(40):
                session = draw.choice(sessions)
                action = draw.randrange(6)
                if action < 3:
                    await session.exec(sh("; ".join(f"({step()}) 2>/dev/null" for _ in range(4))))
                elif action == 3:
                    now = await state(session)
                    kept.append((await session.snapshot(), now))
                elif action == 4 and kept:
                    snapshot, wanted = draw.choice(kept)
                    await session.roll_back(snapshot)
                    assert await state(session) == wanted
                elif action == 5 and len(sessions) < 4:
                    wanted = await state(session)
                    fork = await session.fork()
                    sessions.append(fork)
                    assert await state(fork) == wanted == await state(session)
            for session in sessions[1:]:
                await session.close()

    within(test)


def test_forks_do_not_see_each_other() -> None:
    async def test(sandbox: Sandbox) -> None:
        session = await sandbox.session({"f": b"0"})
        fork = await session.fork()
        await fork.write("f", b"1")
        await session.write("f", b"2")
        await session.close()
        assert await fork.read("f") == b"1"
        snapshot = await fork.snapshot()
        await fork.remove("f")
        await fork.roll_back(snapshot)
        assert await fork.read("f") == b"1"
        await fork.close()

    within(test)


def test_a_change_waits_for_commands_and_commands_for_a_change() -> None:
    async def test(sandbox: Sandbox) -> None:
        async with await sandbox.session() as session:
            command = asyncio.create_task(session.exec(sh("sleep 0.3; printf late > f")))
            await asyncio.sleep(0.1)
            await session.snapshot()
            assert (await command).ok
            assert await session.read("f") == b"late"

    within(test)


def test_a_full_workspace_is_the_programs_own_limit() -> None:
    async def test(sandbox: Sandbox) -> None:
        async with await sandbox.session(limits=Limits(disk_mb=2)) as session:
            with pytest.raises(WorkspaceRefusal, match="full"):
                await session.write("big", b"x" * (3 << 20))
            await session.write("small", b"x")
            assert [entry.path for entry in await session.listing()] == ["small"]
        with pytest.raises(WorkspaceRefusal, match="full"):
            await sandbox.session({"big": b"x" * (3 << 20)}, Limits(disk_mb=2))

    within(test)


def test_unknown_snapshots_roots_and_closed_sessions_are_named() -> None:
    async def test(sandbox: Sandbox) -> None:
        with pytest.raises(ConfigError, match="'nowhere' is not declared"):
            await sandbox.session(root="nowhere")
        session = await sandbox.session()
        for call in (session.roll_back("snapshot-9"), session.fork("snapshot-9")):
            with pytest.raises(WorkspaceRefusal, match=r"no snapshot 'snapshot-9'; there are: none"):
                await call
        await session.close()
        await session.close()
        for again in (session.exec(sh("true")), session.snapshot(), session.read("x")):
            with pytest.raises(WorkspaceRefusal, match="closed"):
                await again

    within(test)


def test_ending_a_session_kills_what_runs_in_it() -> None:
    async def test(sandbox: Sandbox) -> None:
        session = await sandbox.session()
        command = asyncio.create_task(session.exec(sh("sleep 60")))
        await asyncio.sleep(0.2)
        await session.end()
        assert (await command).outcome is Outcome.KILLED

    within(test)


@pytest.mark.parametrize("what", ["write", "unpack", "packed"])
def test_who_is_cancelled_in_the_middle_of_files_touches_no_other_session(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its descriptor's number is the next one that is opened: of another session's folder, of the tree that it was
    rolled back to."""
    begun, may_go = threading.Event(), threading.Event()

    def held(real: Callable[..., Any]) -> Callable[..., Any]:
        def slow(*arguments: Any) -> Any:
            begun.set()
            may_go.wait(30.0)
            return real(*arguments)

        return slow

    async def test(sandbox: Sandbox) -> None:
        async with (
            await sandbox.session({"mine": b"one"}) as first,
            await sandbox.session({"theirs": b"two"}) as other,
        ):
            packed = await first.packed(1 << 20)
            for name in ("write_file", "pack", "unpack"):
                real = getattr(session_module, name)
                monkeypatch.setattr(session_module, name, held(real))
            work = asyncio.ensure_future(
                {
                    "write": lambda: first.write("mine", b"changed"),
                    "unpack": lambda: first.unpack(packed),
                    "packed": lambda: first.packed(1 << 20),
                }[what]()
            )
            await asyncio.to_thread(begun.wait, 30.0)
            work.cancel()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            look = asyncio.ensure_future(other.read("theirs"))
            change = asyncio.ensure_future(first.snapshot())
            assert await look == b"two"
            assert not change.done() and not work.done()
            may_go.set()
            with pytest.raises(asyncio.CancelledError):
                await work
            await change
            assert [entry.path for entry in await first.listing()] == ["mine"]
            assert [entry.path for entry in await other.listing()] == ["theirs"]

    try:
        within(test)
    finally:
        may_go.set()


def test_a_folder_that_is_opened_for_somebody_who_was_just_cancelled_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test(sandbox: Sandbox) -> None:
        async with await sandbox.session({"f": b"x"}) as session:
            await session.read("f")
            passed: list[int] = []
            work = asyncio.ensure_future(session.read("f"))
            take = sandbox.keeper._take

            def taken(message: dict[str, Any], descriptor: int | None) -> None:
                take(message, descriptor)
                if descriptor is not None:
                    passed.append(descriptor)
                    work.cancel()

            monkeypatch.setattr(sandbox.keeper, "_take", taken)
            with pytest.raises(asyncio.CancelledError):
                await work
            (descriptor,) = passed
            with pytest.raises(OSError, match="Bad file descriptor"):
                os.fstat(descriptor)

    within(test)


def test_many_snapshots_reach_a_limit_that_is_said() -> None:
    async def test(sandbox: Sandbox) -> None:
        async with await sandbox.session() as session:
            with pytest.raises(WorkspaceRefusal, match="snapshots deep: at most 400"):
                for number in range(500):
                    await session.write("f", str(number).encode())
                    await session.snapshot()
            assert await session.read("f") == b"399"

    within(test)


FILL = "import os\nnumber = 0\ntry:\n    while True:\n        os.mkdir(f'd{number}')\n        number += 1\nexcept OSError:\n    print(number)\n"


def test_a_workspace_that_was_filled_to_the_last_name_is_kept_and_brought_back() -> None:
    """A snapshot that fails would be a fault of ours, and whoever likes could cause it."""

    async def test(sandbox: Sandbox) -> None:
        limits = Limits(inodes=100)
        fill = Command(("python3", "-c", FILL))
        async with await sandbox.session({"given.txt": b"given"}, limits) as session:
            clean = await session.snapshot()
            for _ in range(3):
                filled = await session.exec(fill)
                assert int(filled.stdout) > 0
                full = await session.snapshot()
                assert (await session.exec(sh("test -d d0"))).ok
                async with await session.fork(full) as other:
                    assert (await other.exec(sh("test -d d0; rmdir d0"))).ok
                await session.roll_back(clean)
                assert [entry.path for entry in await session.listing()] == ["given.txt"]
                await session.forget(full)

    within(test)
