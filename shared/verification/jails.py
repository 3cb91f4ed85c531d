"""The sandbox of one process, as checks get at it: opened when the first needs it, shared within a budget.

Invariant: a process whose domains need no sandbox never opens one; a sandbox that cannot be opened, or that broke,
is a fault of the check that met it, and the next check tries again with a new one.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Generic, Protocol, TypeVar

import structlog

from shared.errors import TemperError
from shared.sandbox.command import Command
from shared.sandbox.faults import SandboxFault
from shared.sandbox.limits import Limits
from shared.sandbox.sandbox import Sandbox
from shared.sandbox.settings import SandboxSettings
from shared.verification.capacity import Capacity, Demand

PROBE = Limits(wall_s=20.0)
"""Of the first run: ample, for a machine under load must not look like a broken one."""


class Closing(Protocol):
    """What is needed of a sandbox here; checks know the rest of it."""

    async def close(self) -> None: ...


B = TypeVar("B", bound=Closing)
Open = Callable[[], Awaitable[B]]


class Jails(Generic[B]):
    """Use `admitted` around each check, and `aclose` at the end.

    `open_box` makes an open sandbox. It may raise whatever the machine's state makes it raise: that check is a fault.
    """

    def __init__(self, open_box: Open[B], budget: Demand) -> None:
        self._open_box = open_box
        self._capacity = Capacity(budget)
        self._tickets = itertools.count()
        self._turns: dict[int, asyncio.Future[None]] = {}
        self._box: B | None = None
        self._users: dict[int, int] = {}
        """Checks in progress by the id of their sandbox: a broken one is closed when its last one has left."""
        self._lock = asyncio.Lock()
        self._closed = False
        self.problem = ""
        """Why the last attempt to open a sandbox failed; empty once one is open."""
        self._log = structlog.get_logger()

    @property
    def waiting(self) -> int:
        """Checks that wait for their turn."""
        return self._capacity.waiting

    @property
    def running(self) -> int:
        return self._capacity.running

    @contextlib.asynccontextmanager
    async def admitted(self, demand: Demand) -> AsyncIterator[B]:
        """Waits for its turn, then the sandbox. Raises `VerificationFault` for a demand that never fits.

        A `SandboxFault` out of the block makes the next check open a new sandbox.
        """
        ticket = next(self._tickets)
        try:
            await self._turn(ticket, demand)
            box = await self._open()
            self._users[id(box)] = self._users.get(id(box), 0) + 1
            try:
                yield box
                if self._closed:
                    # What it judged may have been ended by us: that looks like the program's own end.
                    raise SandboxFault(
                        "the verifier closed while a check ran: it says nothing about its program"
                    )
            except SandboxFault as error:
                self._doubt(box, error)
                raise
            finally:
                await self._released(box)
        finally:
            self._let_in(self._capacity.leave(ticket))

    async def aclose(self) -> None:
        """No check begins after it; those that run lose their sandbox and end as faults."""
        self._closed = True
        for turn in self._turns.values():
            if not turn.done():
                turn.set_exception(SandboxFault("the verifier is closing: no check was made"))
        box, self._box = self._box, None
        if box is not None:
            await box.close()

    async def _turn(self, ticket: int, demand: Demand) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._turns[ticket] = turn
        try:
            self._let_in(self._capacity.ask(ticket, demand))
            await turn
        finally:
            del self._turns[ticket]

    def _let_in(self, tickets: list[int]) -> None:
        for ticket in tickets:
            turn = self._turns[ticket]
            if not turn.done():
                turn.set_result(None)

    async def _open(self) -> B:
        async with self._lock:
            if self._closed:
                raise SandboxFault("the verifier is closing: no check was made")
            if self._box is None:
                try:
                    box = await self._open_box()
                except Exception as error:
                    self.problem = str(error) or type(error).__name__
                    raise
                self.problem = ""
                if self._closed:  # closed meanwhile: nobody else would close this one
                    await box.close()
                    raise SandboxFault("the verifier is closing: no check was made")
                self._box = box
            return self._box

    def _doubt(self, box: B, error: SandboxFault) -> None:
        """The sandbox may be broken for good: nobody is given it again."""
        if self._box is box:
            self._box = None
            self._log.warning("sandbox.replaced", reason=str(error))

    async def _released(self, box: B) -> None:
        self._users[id(box)] -= 1
        if self._users[id(box)]:
            return
        del self._users[id(box)]
        if box is not self._box and not self._closed:
            with contextlib.suppress(TemperError):
                await box.close()


def machine_budget(cpus: float, memory_mb: int) -> Demand:
    """The configured budget; 0 means all CPUs this process may use, and half of the machine's memory."""
    total_mb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 20)
    return Demand(cpus or float(len(os.sched_getaffinity(0))), memory_mb or total_mb / 2)


async def open_sandbox(settings: SandboxSettings) -> Sandbox:
    """An open sandbox that has run something: what cannot run `true` judges nobody.

    Raises `SandboxUnavailable` and `SandboxFault` in the words of what failed.
    """
    box = Sandbox(settings)
    try:
        await box.start()
        result = (await box.run(Command(("true",)), PROBE)).raise_for_infrastructure()
        if not result.ok:
            raise SandboxFault(
                f"a first `true` in the sandbox ended by {result.outcome.value}: {result.detail.strip()[-300:]}; "
                "see `temper sandbox doctor`"
            )
    except BaseException:
        await box.close()
        raise
    return box


AnyJails = Jails[Any]
