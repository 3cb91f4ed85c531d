"""A workspace carried from one sandbox to another is the same tree, or is refused."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from shared.sandbox.command import Command
from shared.sandbox.limits import Limits
from shared.sandbox.sandbox import Sandbox
from shared.sandbox.sessions.files import WorkspaceRefusal
from shared.sandbox.sessions.session import Session
from tests.sandbox.machines import MODES, settings_of

MOST = 1 << 20
TREE = r"""
mkdir -p a/b empty closed; printf 'one' > a/b/c; head -c 5000 /dev/urandom > a/bytes; printf 'x' > "$(printf 'n\377')"
chmod 700 a/bytes; chmod 000 a/b/c; ln -s b/c a/link; ln -s /etc/passwd out; ln -s ../.. up; ln -s nowhere dangling
touch -d @1000000000.123456789 a/bytes; touch -h -d @5 a/link; echo inside > closed/f; chmod 500 closed
touch -d @1200000000.5 empty; chmod 2755 a/bytes; mkdir shared; chmod 1777 shared; touch -d @1300000000.25 a/b
"""


def in_two_sessions(body: Callable[[Session, Session], Awaitable[Any]]) -> Any:
    """Of two sandboxes, as two processes have them."""

    async def run() -> Any:
        async with (
            Sandbox(settings_of(MODES[0])) as one,
            Sandbox(settings_of(MODES[0])) as two,
            await one.session({}, Limits()) as first,
            await two.session({}, Limits()) as second,
        ):
            return await body(first, second)

    return asyncio.run(run())


async def shell(session: Session, script: str) -> str:
    ran = await session.exec(Command(("sh", "-c", script)))
    assert ran.exit_code == 0, ran
    return ran.stdout.decode()


def test_the_tree_is_the_same_there() -> None:
    async def body(first: Session, second: Session) -> None:
        await shell(first, TREE)
        await second.unpack(await first.packed(MOST))
        was, now = await first.listing(), await second.listing()
        assert [(e.path, e.kind, e.mode, e.size, e.target) for e in was if e.kind != "folder"] == [
            (e.path, e.kind, e.mode, e.size, e.target) for e in now if e.kind != "folder"
        ]
        assert {e.path: (e.mode, e.mtime_ns) for e in was} == {e.path: (e.mode, e.mtime_ns) for e in now}
        assert {e.path: e.mode for e in now if e.mode > 0o777} == {"a/bytes": 0o2755, "shared": 0o1777}
        assert {"a/bytes", "closed/f", "empty", os.fsdecode(b"n\xff")} <= {entry.path for entry in now}
        assert await first.read("a/bytes") == await second.read("a/bytes")
        # Programs there own it, as they did here.
        assert (
            await shell(second, "chmod 600 a/b/c; cat a/link; echo more >> a/bytes; readlink out")
            == "one/etc/passwd\n"
        )

    in_two_sessions(body)


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("echo a > f; ln f g", "is a hard link"),
        ('touch f; python3 -c \'import os; os.setxattr("f", "user.a", b"1")\'', "has the attribute 'user.a'"),
        ('mkdir d; python3 -c \'import os; os.setxattr("d", "user.a", b"1")\'', "has the attribute 'user.a'"),
        ("mkfifo pipe", "is no file, folder or link"),
        (f"head -c {MOST + 1} /dev/zero > big", "at most 1048576 are carried"),
        ("truncate -s 40M sparse", "at most 1048576 are carried"),
    ],
)
def test_what_cannot_be_carried_is_refused(script: str, why: str) -> None:
    async def body(first: Session, second: Session) -> None:
        await shell(first, script)
        with pytest.raises(WorkspaceRefusal, match=why):
            await first.packed(MOST)

    in_two_sessions(body)


def test_other_bytes_are_refused_and_nothing_leaves_the_workspace() -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    drawn = random.Random(seed)

    async def body(first: Session, second: Session) -> None:
        await shell(first, "echo a > f")
        packed = await first.packed(MOST)
        for _ in range(30):
            broken = bytearray(packed)
            broken[drawn.randrange(len(broken))] ^= drawn.randrange(1, 256)
            with pytest.raises(WorkspaceRefusal, match="are no workspace"):
                await second.unpack(bytes(broken))
        with pytest.raises(WorkspaceRefusal, match="are no workspace"):
            await second.unpack(packed[:-1])
        assert await second.listing() == []

    in_two_sessions(body)
