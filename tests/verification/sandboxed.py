"""A domain whose answers are programs, and the small method that runs them. Tests only: reached by place."""

from __future__ import annotations

import time
from collections.abc import Sequence

from pydantic import BaseModel

from shared.domains.base import Attempt, CheckRequest, Draft, Instance, Judgement, NearMiss, SandboxedDomain
from shared.domains.draw import Draw
from shared.errors import VerificationFault
from shared.sandbox.command import Command
from shared.sandbox.limits import Limits
from shared.sandbox.outcome import Outcome
from shared.sandbox.sandbox import Sandbox
from shared.verification.checks import Method
from tests.verification.faulty import NoDifficulty

PRINTING = "tests.verification.sandboxed:Printing"
WALL_S = 3.0
ODD_REQUESTS = {
    "no such method": CheckRequest("no_such_method", {}),
    "bad request": CheckRequest("printed_text", {"source": 1}),
    "bad limit": CheckRequest("printed_text", {"source": "", "expected": ""}, {"wall_seconds": 1}),
    "long program": CheckRequest("printed_text", {"source": "", "expected": ""}, {"wall_s": 1000}),
    "long check": CheckRequest("printed_text", {"source": "", "expected": ""}, seconds=1000),
    "much memory": CheckRequest("printed_text", {"source": "", "expected": ""}, {"memory_mb": 1 << 23}),
    "returns text": CheckRequest("returns_text", {}),
    "no jail": CheckRequest("needs_no_jail", {}),
    "times out": CheckRequest("times_out", {}),
    "computes": CheckRequest("computes", {}, seconds=0.4),
}
"""By answers that make the domain ask for them."""


class Printing(SandboxedDomain[NoDifficulty]):
    """ "Print 17": the answer is Python source."""

    name = "printing"
    difficulty_model = NoDifficulty

    def draft(self, draw: Draw, difficulty: NoDifficulty) -> Draft:
        number = str(draw.integer(0, 9999))
        return Draft(prompt=f"Print {number}", expected=number)

    def check(self, instance: Instance, attempt: Attempt) -> Judgement | CheckRequest:
        source = attempt.final_answer
        if not source:
            return Judgement.failed("no program")
        if source in ODD_REQUESTS:
            return ODD_REQUESTS[source]
        if source == "object":
            return CheckRequest("printed_text", {"source": object()})
        runs = int(source.removeprefix("# runs ").split("\n")[0]) if source.startswith("# runs ") else 1
        request = Program(source=source, expected=str(instance.expected), runs=runs)
        wall_s = 10 * WALL_S if source.startswith("# patient") else WALL_S
        return CheckRequest("printed_text", request, {"wall_s": wall_s, "memory_mb": 128}, seconds=2 * wall_s)

    def oracle(self, instance: Instance) -> str:
        return f"print({instance.expected})"

    def do_nothing(self, instance: Instance) -> str:
        return ""

    def near_misses(self, instance: Instance) -> Sequence[NearMiss]:
        return (NearMiss(f"print({instance.expected}0)", "failed"),)


class Program(BaseModel):
    source: str
    expected: str
    runs: int = 1


async def printed_text(sandbox: Sandbox, request: Program, limits: Limits) -> Judgement:
    """Every run prints the expected text and nothing else."""
    for _ in range(request.runs):
        command = Command(("python3", "-I", "-c", request.source))
        result = (await sandbox.run(command, limits)).raise_for_infrastructure()
        if result.outcome is Outcome.EXITED and result.stdout.strip() == request.expected.encode():
            continue
        return Judgement.failed(f"{result.outcome.value}: another text")
    return Judgement.passed()


class Nothing(BaseModel):
    """No request."""


async def returns_text(sandbox: Sandbox, request: Nothing, limits: Limits) -> str:
    return "passed"


async def needs_no_jail(sandbox: None, request: Nothing, limits: Limits) -> Judgement:
    return Judgement.passed() if sandbox is None else Judgement.failed("a sandbox was opened for nothing")


async def times_out(sandbox: None, request: Nothing, limits: Limits) -> Judgement:
    raise TimeoutError("a wait of the method's own")


async def computes(sandbox: None, request: Nothing, limits: Limits) -> Judgement:
    time.sleep(1.5)
    return Judgement.passed()


METHODS = {
    "computes": Method(Nothing, computes, jailed=False),
    "times_out": Method(Nothing, times_out, jailed=False),
    "needs_no_jail": Method(Nothing, needs_no_jail, jailed=False),
    "printed_text": Method(Program, printed_text),
    "returns_text": Method(Nothing, returns_text),  # type: ignore[arg-type]
}


def methods(name: str) -> Method:
    if name not in METHODS:
        raise VerificationFault(f"check method {name!r} is not known")
    return METHODS[name]
