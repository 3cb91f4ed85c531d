"""One attempt to its judgement: by the domain itself in a killable child, or by a check method in a sandbox.

Invariant (5 of the design): a verdict on the policy's program is given only by a method that had all the time its
domain declared; where there is less, or anything of ours fails, a fault is raised. No check outlives its allowance,
whatever it waits for.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from shared.contracts.task import DomainRef
from shared.errors import ConfigError, VerificationFault
from shared.plain_errors import explain
from shared.sandbox.limits import Limits
from shared.sandbox.spent import metered
from shared.verification.capacity import Demand
from shared.verification.children import Checked, ChildPool, judged_or_fault
from shared.verification.faults import CheckTimedOut, CheckTooLate
from shared.verification.jails import AnyJails
from shared.verification.judgement import Attempt, Judgement
from shared.verification.request import CheckRequest

JAILS_OF_A_CHECK = 2
"""Code under test and the process that tests it, each at the memory limit; they take turns on one CPU."""


@dataclass(frozen=True, slots=True)
class Method:
    """A check method: the model of its request, and `check(sandbox, request, limits)`.

    `jailed` False: it runs nothing of the policy's, and is called without a sandbox, in a thread and a loop of its
    own; what it does must be bounded by its request's size, for a thread cannot be ended.
    """

    request: type[BaseModel]
    check: Callable[[Any, Any, Limits], Awaitable[Judgement]]
    jailed: bool = True


Methods = Callable[[str], Method]
"""By name. Raises `VerificationFault` for a name that is none."""


@dataclass(frozen=True, slots=True)
class Allowance:
    """Seconds of wall time for one check, from now on.

    `child_s`: of the domain's own code. `sandbox_s`: of a check in a sandbox, at most. `left_s`: until nobody wants
    the verdict any more (infinite where the task has no deadline); it only ever cuts the second.
    """

    child_s: float
    sandbox_s: float
    left_s: float = float("inf")


class Checks:
    """Judges attempts. `jails` None: domains that want a sandbox are faults."""

    def __init__(self, children: ChildPool, jails: AnyJails | None, methods: Methods) -> None:
        self._children = children
        self._jails = jails
        self._methods = methods

    async def check(
        self, reference: DomainRef, attempt: Attempt, allowance: Allowance, *, fresh: bool = False
    ) -> Checked:
        """Raises `CheckTimedOut` past the allowance (`CheckTooLate` where the deadline made it too small) and
        `VerificationFault` for every other fault of ours. `fresh`: the domain is asked in a new child; a jail is
        new for every run anyway."""
        began = time.monotonic()
        asked = await self._children.ask(reference, attempt, allowance.child_s, fresh=fresh)
        if isinstance(asked.found, Judgement):
            return Checked(asked.found, asked.wall_seconds, asked.cpu_seconds)
        left_s = allowance.left_s - (time.monotonic() - began)
        started = time.perf_counter()
        method = self._methods(asked.found.method)
        with metered() as jails:
            judgement = await self._by_method(
                method, reference.name, asked.found, allowance.sandbox_s, left_s
            )
        wall = asked.wall_seconds + time.perf_counter() - started
        cpu = asked.cpu_seconds + jails.cpu_s
        return Checked(judged_or_fault(judgement), wall, cpu, ran_code=method.jailed)

    async def _by_method(
        self, method: Method, domain: str, wanted: CheckRequest, most_s: float, left_s: float
    ) -> Judgement:
        request = _request(domain, wanted, method)
        limits = _limits(domain, wanted.limits)
        seconds = _seconds(domain, wanted, limits, most_s)
        cut = left_s < seconds
        try:
            async with asyncio.timeout(None) as clock:
                # What waits for its turn waits until it is too late to do the whole check in time.
                if left_s != float("inf"):
                    _enough(domain, limits, left_s)
                    clock.reschedule(asyncio.get_running_loop().time() + left_s)
                async with self._place(domain, wanted, method, limits) as box:
                    cut = self._begin(clock, domain, limits, seconds)
                    judgement = await _run(method, box, request, limits)
        except TimeoutError as error:
            if not clock.expired():
                raise VerificationFault(
                    f"method {wanted.method!r} let a timeout of its own through: {error}"
                ) from error
            if cut:
                raise CheckTooLate(
                    f"the {wanted.method} check of domain {domain!r} was not over at the task's deadline"
                ) from error
            raise CheckTimedOut(
                f"the {wanted.method} check of domain {domain!r} passed its budget of {seconds:g} s; it was ended"
            ) from error
        if not isinstance(judgement, Judgement):
            raise VerificationFault(
                f"method {wanted.method!r} returned {type(judgement).__name__}: it must return a Judgement"
            )
        return judgement

    def _place(
        self, domain: str, wanted: CheckRequest, method: Method, limits: Limits
    ) -> contextlib.AbstractAsyncContextManager[Any]:
        """Where the method runs: the sandbox, once it is this check's turn, or nowhere in particular."""
        if not method.jailed:
            return contextlib.nullcontext()
        if self._jails is None:
            raise VerificationFault(
                f"domain {domain!r} wants a {wanted.method} check: that needs a sandbox, and there is none"
            )
        return self._jails.admitted(Demand(1.0, limits.memory_mb * JAILS_OF_A_CHECK))

    @staticmethod
    def _begin(clock: asyncio.Timeout, domain: str, limits: Limits, seconds: float) -> bool:
        """Its turn has come: the budget runs from here. True where the deadline cuts it."""
        now, deadline = asyncio.get_running_loop().time(), clock.when()
        if deadline is None:
            clock.reschedule(now + seconds)
            return False
        _enough(domain, limits, deadline - now)
        clock.reschedule(min(deadline, now + seconds))
        return deadline < now + seconds


async def _run(method: Method, box: Any, request: BaseModel, limits: Limits) -> Judgement:
    """A method without a jail computes in this process: in a thread, so that heartbeats and other checks go on."""
    if method.jailed:
        return await method.check(box, request, limits)

    async def alone() -> Judgement:
        return await method.check(None, request, limits)

    return await asyncio.to_thread(lambda: asyncio.run(alone()))


def _enough(domain: str, limits: Limits, left_s: float) -> None:
    """A program that is cut off by our deadline has not failed: it is not begun."""
    if left_s < limits.wall_s:
        raise CheckTooLate(
            f"domain {domain!r} grants a program {limits.wall_s:g} s and its task's deadline is in {left_s:.1f} s: "
            "not begun, for it could not be judged fairly"
        )


def _request(domain: str, wanted: CheckRequest, method: Method) -> BaseModel:
    try:
        return method.request.model_validate(wanted.request)
    except ValidationError as error:
        problems = explain(method.request, error, "the request")
        raise VerificationFault(f"domain {domain!r}: {wanted.method} check: {problems}") from error


def _limits(domain: str, declared: Mapping[str, float]) -> Limits:
    try:
        return Limits(**declared)  # type: ignore[arg-type]
    except (ConfigError, TypeError) as error:
        raise VerificationFault(f"domain {domain!r}: limits of its check: {error}") from error


def _seconds(domain: str, wanted: CheckRequest, limits: Limits, most_s: float) -> float:
    """The budget of the whole check."""
    seconds = wanted.seconds or most_s
    for what, value in (("a check", seconds), ("one program", limits.wall_s)):
        if value > most_s:
            raise VerificationFault(
                f"domain {domain!r} declares {value:g} s for {what} and the verifier allows {most_s:g} s: "
                "raise verifier.sandbox_seconds"
            )
    return seconds
