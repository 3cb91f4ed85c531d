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
from shared.verification.protocol import Hello, Question

DEFAULT_ADDRESS_SPACE_BYTES = 2 << 30


@dataclass(frozen=True, slots=True)
class Checked:
    """A judgement and what it cost, in seconds."""

    judgement: Judgement
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
        """The domain's judgement on the attempt; waits for a free child first.

        Raises `CheckTimedOut` past `budget_s` seconds of wall time and `VerificationFault` for every other fault
        of ours: a domain that raises, a child that dies, an instance that comes out another way.
        """
        child = await self._idle.get()
        try:
            if self._closed:
                raise VerificationFault("the verifier is closing: no check was made")
            if not child.alive:
                await child.start()
            started = time.perf_counter()
            answer = await child.ask(Question(reference, attempt, budget_s))
            wall = time.perf_counter() - started
        finally:
            self._idle.put_nowait(child)
        return Checked(_judgement_or_fault(answer.judgement, answer.fault), wall, answer.cpu_s)

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


def _judgement_or_fault(judgement: Judgement | None, fault: str) -> Judgement:
    """A fault, told by text or by a fault verdict of the domain's own, is raised."""
    if judgement is None:
        raise VerificationFault(fault or "a checking child answered neither a judgement nor a fault")
    if judgement.verdict == "timeout_infra":
        raise CheckTimedOut(judgement.reason or "the domain reports a timeout of its own")
    if judgement.verdict == "infrastructure":
        raise VerificationFault(judgement.reason or "the domain reports a fault of its own")
    return judgement
