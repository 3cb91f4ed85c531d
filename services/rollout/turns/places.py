"""The sandbox of a rollout process, opened when the first attempt needs it.

Invariant: a process whose tasks need no sandbox never opens one; one that cannot be opened is a fault of the attempt
that met it, and the next tries again. `close` takes everything away.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping

from shared.sandbox.faults import SandboxFault
from shared.sandbox.limits import Limits
from shared.sandbox.sandbox import Sandbox
from shared.sandbox.sessions.pool import Lent, SessionPool
from shared.sandbox.sessions.session import Session
from shared.sandbox.settings import SandboxSettings
from shared.verification.jails import open_sandbox

WARM = 2


class Places:
    """Sessions for attempts, `most` at once. Of one event loop."""

    def __init__(self, settings: SandboxSettings, most: int, limits: Limits | None = None) -> None:
        self._settings = settings
        self._most = most
        self._limits = limits or Limits()
        self._stack = contextlib.AsyncExitStack()
        self._pool: SessionPool | None = None
        self._opening = asyncio.Lock()
        self._closed = False

    @contextlib.asynccontextmanager
    async def lease(self, files: Mapping[str, bytes], seconds: float) -> AsyncIterator[Lent]:
        """As `SessionPool.lease`. Raises `SandboxUnavailable` and `SandboxFault` where there is no sandbox."""
        pool = await self._opened()
        async with pool.lease(files, seconds) as lent:
            yield lent

    @property
    def lent(self) -> int:
        return self._pool.lent if self._pool else 0

    async def close(self) -> None:
        """Harmless twice."""
        self._closed = True
        async with self._opening:
            self._pool = None
            await self._stack.aclose()

    async def _opened(self) -> SessionPool:
        async with self._opening:
            if self._closed:
                raise SandboxFault("the sandbox of this process is closed: it is stopping")
            if self._pool is None:
                box = await open_sandbox(self._settings)
                self._stack.push_async_callback(box.close)
                pool = SessionPool(lambda files: self._made(box, files), most=self._most, warm=WARM)
                self._pool = await self._stack.enter_async_context(pool)
            return self._pool

    async def _made(self, box: Sandbox, files: Mapping[str, bytes]) -> Session:
        return await box.session(files, self._limits)
