"""`python_function_tests`: a function of the policy's against plain asserts.

Invariant: the candidate runs in a jail that knows neither tests nor expected values; the asserts run in another, on
plain data. A pass means that `check(candidate)` returned there, after it had called the candidate.
"""

from __future__ import annotations

import ast
import asyncio
from dataclasses import replace

from pydantic import Field

from shared.sandbox.limits import Limits
from shared.sandbox.sandbox import Sandbox
from shared.verification.detectors.flags import Flag
from shared.verification.detectors.known import examples_in_test
from shared.verification.detectors.source import flags_of_constant, flags_of_source, parsed
from shared.verification.guest.tester import PLACE
from shared.verification.judgement import Judgement
from shared.verification.methods.base import (
    MAX_SOURCE_CHARS,
    Request,
    VisibleExample,
    examples,
    too_long,
)
from shared.verification.methods.converse import Finished, Script, converse
from shared.verification.methods.in_place import without_states

FUNCTION = "check"
MAX_TEST_CHARS = 6_000_000
"""Of a test, which is ours and may hold a table."""


class PythonFunctionTests(Request):
    """`test` defines `check(candidate)` in plain asserts; the candidate is also known there by its own name.

    `prelude`: trusted source that the test needs, such as helpers of the task's statement; never the policy's.

    Changes that the candidate makes to its arguments are seen by the test. Where there were any, the test must also
    pass with its arguments left alone, but for what it asserts of them (`in_place.without_states`): or emptying a list
    would make `candidate(items) == sum(items)` true. `in_place`: the task is to change arguments and to return
    something that depends on earlier changes, such as a stack's size; then that is not asked for.
    """

    candidate: str
    entry_point: str = Field(min_length=1)
    test: str = Field(min_length=1)
    prelude: str = ""
    visible: tuple[VisibleExample, ...] = ()
    in_place: bool = False


async def check(sandbox: Sandbox, request: PythonFunctionTests, limits: Limits) -> Judgement:
    """Passed or failed; unverifiable where the test itself is wrong. Raises `SandboxFault`."""
    refused = too_long(request.candidate, "candidate") or _test_mistake(request)
    if refused is not None:
        return refused
    known = (examples(request.visible), examples_in_test(request.test, "candidate", request.entry_point))
    seen = flags_of_source(request.candidate, known=known)
    sources = [("<prelude>", request.prelude)] if request.prelude else []
    script = Script([*sources, (PLACE, request.test)], FUNCTION)
    end, flags = await converse(sandbox, request.candidate, request.entry_point, script, limits)
    judged = end if isinstance(end, Judgement) else judge(end)
    if isinstance(end, Finished) and end.changed and judged.verdict == "passed" and not request.in_place:
        judged, more = await _left_alone(sandbox, request, script, limits)
        flags |= more
    if judged.verdict != "passed":
        flags |= flags_of_constant(request.candidate, request.entry_point)
    return judged.flagged({*seen, *flags})


async def _left_alone(
    sandbox: Sandbox, request: PythonFunctionTests, script: Script, limits: Limits
) -> tuple[Judgement, frozenset[Flag]]:
    """The verdict on a candidate that changed its arguments and passed."""
    kept = await asyncio.to_thread(without_states, request.test, (request.entry_point,), MAX_SOURCE_CHARS)
    again = replace(script, sources=[*script.sources[:-1], (PLACE, kept)], mirrors=False)
    end, flags = await converse(sandbox, request.candidate, request.entry_point, again, limits)
    if isinstance(end, Finished) and end.outcome == "passed":
        return Judgement.passed(), flags
    if (
        isinstance(end, Finished) and end.outcome == "test_error"
    ):  # what was left out is missed: nobody can tell
        return Judgement.passed().flagged([Flag.ARGUMENT_MUTATED]), flags
    judged = Judgement.failed("the test passes only on arguments that the candidate has changed")
    return judged.flagged([Flag.ARGUMENT_MUTATED]), flags


def judge(end: Finished) -> Judgement:
    """The verdict on a test that was run."""
    where = f" at line {end.line} of the test" if end.line else ""
    match end.outcome:
        case "passed" if end.calls == 0:
            return Judgement.unverifiable("the test never called the candidate: mend the test")
        case "passed":
            return Judgement.passed()
        case "assertion":
            return Judgement.failed(f"an assertion failed{where}")
        case "raised":
            return Judgement.failed(f"the candidate raised {end.told}{where}")
        case "broke":
            return Judgement.failed(
                f"the test could not go on with what the candidate returned{where}: {end.told}"
            )
        case "malformed" | "refused":
            judged = Judgement.failed("the candidate's process answered what is no plain data")
            return judged.flagged([Flag.TEST_RUNNER_PATCHED])
        case "departed":
            return Judgement.failed("the candidate asked to leave in a call").flagged(
                [Flag.EXIT_IN_CANDIDATE]
            )
        case _:
            return Judgement.unverifiable(f"the test itself is wrong{where}: {end.told}; mend the test")


def _test_mistake(request: PythonFunctionTests) -> Judgement | None:
    """What is wrong with a test before anything runs."""
    tree = parsed(request.test, MAX_TEST_CHARS)
    if tree is None:
        return Judgement.unverifiable("the test does not compile: mend the test")
    if not any(
        isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef) and n.name == FUNCTION for n in ast.walk(tree)
    ):
        return Judgement.unverifiable(f"the test defines no {FUNCTION}(candidate): mend the test")
    if not any(isinstance(node, ast.Assert | ast.Raise) or _asserts(node) for node in ast.walk(tree)):
        return Judgement.unverifiable("the test asserts nothing: mend the test")
    return None


def _asserts(node: ast.AST) -> bool:
    """A call of a helper such as `numpy.testing.assert_allclose` or `self.assertEqual`."""
    if not isinstance(node, ast.Call):
        return False
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    return str(name).lower().startswith(("assert", "_assert", "fail"))
