"""Small Python checks by the hundred a second, each in a jail of its own.

Invariant: what holds for `Sandbox.run` holds here: an outcome comes from counters and our own watching, output is
bytes, and when a check has its result nothing of it is left, whatever became of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from shared.errors import ConfigError
from shared.sandbox.faults import SandboxFault
from shared.sandbox.limits import Limits
from shared.sandbox.one_run import ENVIRONMENT
from shared.sandbox.outcome import Outcome, Result
from shared.sandbox.prewarmed.channel import Channel
from shared.sandbox.prewarmed.child import Check, Child
from shared.sandbox.prewarmed.host import Host
from shared.sandbox.prewarmed.pool import RESERVE, USERS, Pool
from shared.sandbox.prewarmed.server import ForkServer


class Prewarmed:
    """`run` a check, or `open` one and talk to it. `close` ends all; `async with` does it."""

    def __init__(self, sandbox: Host, *, reserve: int = RESERVE, users: int = USERS) -> None:
        self._sandbox = sandbox
        self._reserve = reserve
        self._users = users
        self._pools: dict[tuple[str, ...], Pool] = {}
        self._children: set[Child] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def restarts(self) -> int:
        """Fork servers that were lost and replaced."""
        return sum(pool.restarts for pool in self._pools.values())

    async def run(self, check: Check, limits: Limits | None = None) -> Result:
        """To its end or to its limits. Never raises for what the check did, nor for what we could not do: that is
        `Outcome.INFRASTRUCTURE`. Raises `ConfigError` for an import that the settings do not name."""
        try:
            async with self.open(check, limits) as child:
                return await child.finish()
        except SandboxFault as fault:
            return Result(Outcome.INFRASTRUCTURE, detail=str(fault))

    def open(self, check: Check | str | bytes, limits: Limits | None = None) -> Opened:
        """`async with prewarmed.open(source, limits) as child: …`. A bare source gets a channel.

        Raises `ConfigError` for an import that the settings do not name; entering it `SandboxFault` where no check
        can be made. What still runs at the end of the block is killed."""
        if not isinstance(check, Check):
            check = Check(check, channel=True)
        return Opened(self._pool(check.imports), self._children, check, limits or Limits())

    async def prepare(self, limits: Limits, imports: tuple[str, ...] = ()) -> None:
        """Starts the fork server and fills the reserve, so that the first check does not wait for it.

        Raises `SandboxFault`."""
        await self._pool(imports).fill(limits)

    async def close(self) -> None:
        """Ends what still runs, as `Outcome.KILLED`."""
        pools, self._pools = list(self._pools.values()), {}
        for pool in pools:
            pool.shut()
        await asyncio.gather(*(child.kill() for child in self._children), return_exceptions=True)
        await asyncio.gather(*(pool.close() for pool in pools))

    def _pool(self, imports: Iterable[str]) -> Pool:
        names = tuple(sorted(set(imports)))
        unknown = [name for name in names if name not in self._sandbox.settings.python_packages]
        if unknown:
            raise ConfigError(
                f"a check imports {unknown[0]!r} ahead, which is not in sandbox.python_packages: name it there"
            )
        if names not in self._pools:
            self._pools[names] = Pool(
                lambda: self._start_server(names), self._sandbox.cgroups, reserve=self._reserve, users=self._users
            )  # fmt: skip
        return self._pools[names]

    async def _start_server(self, imports: tuple[str, ...]) -> ForkServer:
        sandbox = self._sandbox
        await sandbox.ready()
        root = await sandbox.roots.path("default")
        server = ForkServer(sandbox, root, self._users, imports)
        await server.start(ENVIRONMENT)
        return server


@dataclass
class Opened:
    """The context of one open check."""

    _pool: Pool
    _children: set[Child]
    _check: Check
    _limits: Limits
    _child: Child | None = None

    async def __aenter__(self) -> Child:
        """Raises `SandboxFault` where no check can be made."""
        member = await self._pool.take(self._limits)
        channel: Channel | None = None
        child: Child | None = None
        try:
            channel = Channel() if self._check.channel else None
            child = Child(self._pool, member, self._limits, channel)
            await child.start(self._check)
        except BaseException:
            if child is not None and child.started:
                await child.leave()
            else:
                if channel is not None:
                    channel.close()
                await self._pool.end(member)
            raise
        self._child = child
        self._children.add(child)
        self._pool.refill(self._limits)
        return child

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._child is not None
        self._children.discard(self._child)
        await self._child.leave()
