"""A pool of killable children that judge attempts.

Invariant: one question a child at a time; a check that hangs, crashes or breaks the protocol costs its own child
and its own fault, never another check's verdict. The budget runs from the moment a child takes the question.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType

from shared.contracts.task import DomainRef
from shared.errors import VerificationFault
from shared.verification.child import Child, child_environment
from shared.verification.faults import CheckTimedOut
from shared.verification.judgement import Attempt, Judgement
from shared.verification.protocol import Answer, Hello, Question
from shared.verification.request import CheckRequest

DEFAULT_ADDRESS_SPACE_BYTES = 2 << 30


@dataclass(frozen=True, slots=True)
class Checked:
    """A judgement and what it cost, in seconds. `ran_code`: whether code of the policy ran for it."""

    judgement: Judgement
    wall_seconds: float
    cpu_seconds: float
    ran_code: bool = False


@dataclass(frozen=True, slots=True)
class Asked:
    """What the domain said: a judgement, or what it wants done in a sandbox; and what asking cost, in seconds."""

    found: Judgement | CheckRequest
    wall_seconds: float
    cpu_seconds: float


class ChildPool:
    """`children` processes that serve the configured `domains` (names as `load_domain` reads them).

    Use as an async context manager, or call `start` and `close`.
    """

    def __init__(
        self,
        domains: Iterable[str],
        *,
        children: int = 1,
        address_space_bytes: int = DEFAULT_ADDRESS_SPACE_BYTES,
    ) -> None:
        hello = Hello(tuple(dict.fromkeys(domains)), address_space_bytes)
        environment = child_environment()
        self._children = [Child(hello, environment) for _ in range(children)]
        self._idle: asyncio.Queue[Child] = asyncio.Queue()
        self._closed = False
        for child in self._children:
            self._idle.put_nowait(child)

    @property
    def pids(self) -> tuple[int, ...]:
        """Of the children that live."""
        return tuple(child.pid for child in self._children if child.alive)

    async def start(self) -> None:
        """All children up. Raises `ConfigError` in one line for a domain that cannot be loaded."""
        results = await asyncio.gather(*(c.start() for c in self._children), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                await self.close()
                raise result

    async def check(self, reference: DomainRef, attempt: Attempt, budget_s: float) -> Checked:
        """As `ask`, for domains that judge by themselves. Raises `VerificationFault` where one wants a sandbox."""
        asked = await self.ask(reference, attempt, budget_s)
        if isinstance(asked.found, CheckRequest):
            raise VerificationFault(
                f"domain {reference.name!r} wants a {asked.found.method} check: that needs a sandbox, and there is none"
            )
        return Checked(asked.found, asked.wall_seconds, asked.cpu_seconds)

    async def ask(
        self, reference: DomainRef, attempt: Attempt, budget_s: float, *, fresh: bool = False
    ) -> Asked:
        """The domain's word on the attempt; waits for a free child first. `fresh`: by a process that has served
        nobody before.

        Raises `CheckTimedOut` past `budget_s` seconds of wall time and `VerificationFault` for every other fault
        of ours: a domain that raises, a child that dies, an instance that comes out another way.
        """
        child = await self._idle.get()
        try:
            if self._closed:
                raise VerificationFault("the verifier is closing: no check was made")
            if fresh or not child.alive:
                await child.start()
            started = time.perf_counter()
            answer = await child.ask(Question(reference, attempt, budget_s))
            wall = time.perf_counter() - started
        finally:
            self._idle.put_nowait(child)
        return Asked(_found_or_fault(answer), wall, answer.cpu_s)

    async def close(self) -> None:
        """Every child killed and reaped; a check in flight ends as a fault."""
        self._closed = True
        for child in self._children:
            await child.kill()

    async def __aenter__(self) -> ChildPool:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def _found_or_fault(answer: Answer) -> Judgement | CheckRequest:
    if answer.request is not None:
        return answer.request
    if answer.judgement is None:
        raise VerificationFault(answer.fault or "a checking child answered neither a judgement nor a fault")
    return judged_or_fault(answer.judgement)


def judged_or_fault(judgement: Judgement) -> Judgement:
    """Itself; a fault told by a fault verdict is raised."""
    if judgement.verdict == "timeout_infra":
        raise CheckTimedOut(judgement.reason or "the domain reports a timeout of its own")
    if judgement.verdict == "infrastructure":
        raise VerificationFault(judgement.reason or "the domain reports a fault of its own")
    return judgement
