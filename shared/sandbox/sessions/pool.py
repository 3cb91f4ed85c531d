"""Sessions for many episodes: a bounded number, made ahead, lent for a time.

Invariant: at most `most` sessions are lent at once and each to one holder; a lease that runs out closes its session,
so an episode that dies or hangs never keeps a place. What was lent is never lent again.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from types import TracebackType
from typing import Self

import structlog

from shared.errors import TemperError
from shared.sandbox.sessions.leases import LeaseId, Leases
from shared.sandbox.sessions.session import Session

Make = Callable[[Mapping[str, bytes]], Awaitable[Session]]


class SessionPool:
    """`async with pool.lease(files, seconds) as session: …`; `warm` empty sessions wait, ready."""

    def __init__(
        self, make: Make, *, most: int, warm: int = 2, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._make = make
        self._warm = min(warm, most)
        self._clock = clock
        self._places = asyncio.Semaphore(most)
        self._ready: deque[Session] = deque()
        self._leases = Leases()
        self._lent: dict[LeaseId, Session] = {}
        self._wake = asyncio.Event()
        self._keeping: asyncio.Task[None] | None = None
        self._problem: TemperError | None = None
        self._log = structlog.get_logger()

    async def __aenter__(self) -> Self:
        self._keeping = asyncio.create_task(self._keep())
        self._wake.set()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)
        for session in (*self._ready, *self._lent.values()):
            await session.close()
        self._ready.clear()
        self._lent.clear()

    @property
    def lent(self) -> int:
        return len(self._lent)

    @property
    def ready(self) -> int:
        return len(self._ready)

    @contextlib.asynccontextmanager
    async def lease(self, files: Mapping[str, bytes], seconds: float) -> AsyncIterator[Lent]:
        """Waits for a place. The session is closed at the end, or when `seconds` are over without a renewal."""
        async with self._places:
            session = self._ready.popleft() if self._ready else await self._make({})
            lease = self._leases.grant(self._clock(), seconds)
            self._lent[lease] = session
            self._wake.set()
            try:
                await session.write_all(files)
                yield Lent(self, lease, session)
            finally:
                self._leases.give_back(lease)
                if self._lent.pop(lease, None) is not None:
                    await session.close()

    def renew(self, lease: LeaseId, seconds: float) -> bool:
        """False when the lease is over: its session is closed or about to be."""
        return self._leases.renew(lease, self._clock(), seconds)

    async def _keep(self) -> None:
        """Closes what ran out, and makes ready what is missing."""
        while True:
            self._wake.clear()
            for lease in self._leases.over(self._clock()):
                session = self._lent.pop(lease, None)
                if session is not None:
                    self._log.warning("session.lease_over", lease=lease)
                    await session.end()
            try:
                while len(self._ready) < self._warm:
                    self._ready.append(await self._make({}))
            except TemperError as error:
                # Not ours to hide: the next lease makes its own and meets the same fault, with somebody to tell.
                self._log.warning("session.not_made_ahead", reason=str(error))
            end = self._leases.next_end()
            wait = None if end is None else max(0.0, end - self._clock())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._wake.wait()


class Lent:
    """A session while it is lent."""

    def __init__(self, pool: SessionPool, lease: LeaseId, session: Session) -> None:
        self._pool = pool
        self._lease = lease
        self.session = session

    def renew(self, seconds: float) -> bool:
        """False when it is over already."""
        return self._pool.renew(self._lease, seconds)
