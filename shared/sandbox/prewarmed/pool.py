"""Checks that are prepared ahead: each is used once.

Invariant: a prepared check is given to one caller or ended, never used twice; its outside user is used again only when
nothing of it is left. Everything made here is gone after `close`.

Why ahead: a check that is made on demand (two forks of an interpreter, six namespaces, four mounts, a system call
filter) has its first byte out 3.3 to 5.3 ms after it was asked for, one from the reserve after 1.1, and a late fork or a
slow network namespace is in nobody's way: its 99th percentile is 1.9 ms, that of one made on demand 27 (two cores that
others used too; nsjail with the same interpreter: 14 to 16).
"""

from __future__ import annotations

import asyncio
import os
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, replace

from shared.sandbox.cgroups.base import HELPERS, Cgroups, Group
from shared.sandbox.faults import SandboxFault
from shared.sandbox.limits import Limits
from shared.sandbox.prewarmed.leash import Leash
from shared.sandbox.prewarmed.server import ForkServer, shape_of

RESERVE = max(4, os.cpu_count() or 1)
"""Prepared checks of each shape: one for each core, and bursts are met on small machines too. Some 3 MB each."""
USERS = max(64, 4 * RESERVE)
"""Checks at once of one fork server, prepared ones included; more wait."""
REFILL_AFTER_S = 0.006
"""When the next is prepared: once a small check is over. At once, it took the second core and our own loop from the
check just given: first bytes after 1.8 ms; after 1 ms, three of a hundred still met it (2.6 ms; after 6 ms 1.7, medians
1.1). Checks a second are the same."""
SHAPES = 4
"""Of which there is a reserve; the longest unused is ended for a new one."""


@dataclass(slots=True)
class Member:
    """One prepared check: the socket that holds it, its group, and its place among the server's users."""

    leash: Leash
    group: Group
    place: int
    server: ForkServer


class Pool:
    """Over one fork server at a time; `start_server` makes another when it is lost."""

    def __init__(
        self,
        start_server: Callable[[], Awaitable[ForkServer]],
        cgroups: Cgroups,
        *,
        reserve: int = RESERVE,
        users: int = USERS,
    ) -> None:
        self._start_server = start_server
        self._cgroups = cgroups
        self._reserve = reserve
        self._places: asyncio.Queue[int] = asyncio.Queue()
        for place in range(users):
            self._places.put_nowait(place)
        self._ready: OrderedDict[Limits, deque[Member]] = OrderedDict()
        self._server: ForkServer | None = None
        self._starting = asyncio.Lock()
        self._ending: set[asyncio.Task[None]] = set()
        self._closed = False
        self.restarts = 0
        self.made_on_demand = 0
        self.finished = 0
        """Children of this server that came to a regular end."""

    async def take(self, limits: Limits) -> Member:
        """A prepared check. Raises `SandboxFault` where none can be made, also not by a new fork server."""
        try:
            return await self._try(limits)
        except SandboxFault:
            if self._closed or self._server is None or self._server.alive:
                raise
        return await self._try(limits)

    async def _try(self, limits: Limits) -> Member:
        member = await self._next(limits)
        try:
            await member.leash.ready
        except SandboxFault:
            await self.end(member)
            raise
        except BaseException:
            self._let_end(member)
            raise
        return member

    def refill(self, limits: Limits) -> None:
        """Soon, and without waiting: the check that was just taken is at its first line by then."""
        asyncio.get_running_loop().call_later(REFILL_AFTER_S, self._fill, limits)

    async def fill(self, limits: Limits) -> None:
        """Returns once a whole reserve of this shape is ready. Raises `SandboxFault` where it cannot be made."""
        await self.end(await self.take(limits))
        self._fill(limits)
        await asyncio.gather(*(member.leash.ready for member in self._ready.get(shape_of(limits), ())))

    def _fill(self, limits: Limits) -> None:
        server = self._server
        queue = self._ready.get(shape_of(limits))
        if server is None or queue is None or self._closed:
            return
        while len(queue) < self._reserve and server.alive and self._places.qsize() > 1:
            try:
                queue.append(self._make(server, limits, self._places.get_nowait()))
            except SandboxFault:
                return  # The next check asks again, and is told.

    async def end(self, member: Member) -> None:
        """Kills what is left of it; its group and its user are free afterwards."""
        member.leash.let_go()
        try:
            await member.leash.report
            self.finished += 1
        except SandboxFault:
            pass  # Lost, which also means that nothing of it is left.
        finally:
            member.leash.close()
        try:
            await member.group.remove()
        finally:
            self._places.put_nowait(member.place)

    def shut(self) -> None:
        """Nothing more is taken; what was taken may go on."""
        self._closed = True

    async def close(self) -> None:
        """Ends what was prepared, and the server with all that still runs."""
        self.shut()
        members = [member for queue in self._ready.values() for member in queue]
        self._ready.clear()
        for member in members:
            self._let_end(member)
        if self._server is not None:
            await self._server.close()
        await asyncio.gather(*self._ending, return_exceptions=True)

    async def _next(self, limits: Limits) -> Member:
        server = await self._alive()
        shape = shape_of(limits)
        queue = self._ready.setdefault(shape, deque())
        self._ready.move_to_end(shape)
        if len(self._ready) > SHAPES:
            _, old = self._ready.popitem(last=False)
            for member in old:
                self._let_end(member)
        while queue:
            member = queue.popleft()
            if member.server is server and member.leash.alive:
                return member
            self._let_end(member)
        self.made_on_demand += 1
        return self._make(server, limits, await self._places.get())

    async def _alive(self) -> ForkServer:
        async with self._starting:
            self._refuse_when_closed()
            if self._server is not None and not self._server.alive:
                lost, self._server = self._server, None
                await lost.close()
                if not self.finished:
                    raise SandboxFault("the fork server ended before it finished one check")
                self.restarts += 1
            if self._server is None:
                self.finished = 0
                self._server = await self._start_server()
            return self._server

    def _make(self, server: ForkServer, limits: Limits, place: int) -> Member:
        """Takes over `place`, also where it fails. Raises `SandboxFault`."""
        try:
            self._refuse_when_closed()
            # The group's helper process is nsjail, which is not in this one: process 1 stays outside.
            group = self._cgroups.make(replace(limits, processes=max(1, limits.processes - HELPERS)))
        except SandboxFault:
            self._places.put_nowait(place)
            raise
        try:
            leash = server.fork(limits, place, group)
        except SandboxFault:
            self._places.put_nowait(place)
            self._keep(group.remove())
            raise
        return Member(leash, group, place, server)

    def _refuse_when_closed(self) -> None:
        if self._closed:
            raise SandboxFault("the sandbox was closed")

    def _let_end(self, member: Member) -> None:
        self._keep(self.end(member))

    def _keep(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(work)
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
