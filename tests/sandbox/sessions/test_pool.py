"""Sessions lent for a time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from shared.sandbox.command import Command
from shared.sandbox.outcome import Outcome
from shared.sandbox.sandbox import Sandbox
from shared.sandbox.sessions.files import WorkspaceRefusal
from shared.sandbox.sessions.pool import SessionPool
from shared.sandbox.sessions.session import Session


async def pooled(sandbox: Sandbox, most: int, warm: int) -> SessionPool:
    async def make(files: Mapping[str, bytes]) -> Session:
        return await sandbox.session(files)

    return SessionPool(make, most=most, warm=warm)


def test_a_lease_is_bounded_in_number_and_in_time() -> None:
    async def run() -> None:
        async with Sandbox() as sandbox, await pooled(sandbox, most=2, warm=1) as pool:
            async with pool.lease({"f": b"1"}, 60) as first, pool.lease({}, 60) as second:
                assert await first.session.read("f") == b"1"
                with pytest.raises(WorkspaceRefusal):
                    await second.session.read("f")
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.2), pool.lease({}, 60):
                        raise AssertionError("a third place")
                assert pool.lent == 2
            assert pool.lent == 0
            async with pool.lease({}, 0.3) as short:
                result = await short.session.exec(Command(("/bin/sleep", "30")))
                assert result.outcome is Outcome.KILLED
                assert not short.renew(10)
            async with pool.lease({}, 0.2) as renewed:
                assert renewed.renew(30)
                await asyncio.sleep(0.3)
                await renewed.session.write("f", b"still here")

    asyncio.run(run())
