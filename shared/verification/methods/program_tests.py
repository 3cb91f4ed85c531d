"""`program_tests`: a program of the policy's on standard input and output.

Invariant: each case is a run of its own in a fresh jail, which gets the program and that case's input only; its output
is compared as bytes out here. Cases are run in order and the first that fails decides, unless parts are paid.
"""

from __future__ import annotations

from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from shared.sandbox.command import Command
from shared.sandbox.limits import Limits
from shared.sandbox.outcome import Outcome, Result
from shared.sandbox.sandbox import Sandbox
from shared.sandbox.sessions.files import WorkspaceRefusal
from shared.verification.detectors.flags import Flag
from shared.verification.detectors.known import Example, constant_functions, reads_no_input
from shared.verification.detectors.source import flags_of_source, parsed
from shared.verification.detectors.wording import hedges
from shared.verification.judgement import Judgement
from shared.verification.methods.base import (
    Request,
    VisibleExample,
    ended_early,
    examples,
    flags_of_result,
    too_long,
)
from shared.verification.methods.outputs import OutputComparator, same_output
from shared.verification.methods.trees import bytes_of, unplaceable

PROGRAM = "program.py"
_ENCODING = "utf-8"


class Case(BaseModel):
    """One input and the output it must have."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    stdin: str = ""
    expected: str
    arguments: tuple[str, ...] = ()
    comparator: OutputComparator | None = None


class ProgramOptions(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    comparator: OutputComparator = OutputComparator()
    partial: bool = False
    """Pay the share of the cases that passed; otherwise all or nothing."""
    require_exit_zero: bool = True
    root: str = "default"


class ProgramTests(Request):
    """`candidate` is Python source; or `argv` starts something from `files` (path → text) or the root."""

    candidate: str = ""
    argv: tuple[str, ...] = ()
    files: dict[str, str] = Field(default_factory=dict)
    cases: tuple[Case, ...] = Field(min_length=1)
    visible: tuple[VisibleExample, ...] = ()
    options: ProgramOptions = ProgramOptions()

    @model_validator(mode="after")
    def _one_program(self) -> Self:
        if not self.argv and not self.candidate.strip() and not self.files:
            raise ValueError("neither `candidate` nor `argv` is given: there is no program")
        return self


async def check(sandbox: Sandbox, request: ProgramTests, limits: Limits) -> Judgement:
    """Raises `SandboxFault`."""
    refused = too_long(request.candidate, "program") or _no_tree(request)
    if refused is not None:
        return refused
    seen = _flags_of_program(request)
    failure: Judgement | None = None
    passed = 0
    for number, case in enumerate(request.cases, start=1):
        judged = await _run(sandbox, request, case, number, limits)
        seen |= {Flag(flag) for flag in judged.flags}
        if judged.verdict == "passed":
            passed += 1
            continue
        failure = failure or judged
        if not request.options.partial:
            break
    if failure is None:  # `sys.exit()` is how many programs end
        return _verdict(request, passed, failure).flagged(seen - {Flag.EXIT_IN_CANDIDATE})
    return _verdict(request, passed, failure).flagged(seen | _ignores_input(request))


def _verdict(request: ProgramTests, passed: int, failure: Judgement | None) -> Judgement:
    total = len(request.cases)
    if failure is None:
        return Judgement.passed(f"{total} of {total} cases")
    if request.options.partial and passed:
        return Judgement.partial(passed / total, f"{passed} of {total} cases; {failure.reason}")
    return failure


async def _run(sandbox: Sandbox, request: ProgramTests, case: Case, number: int, limits: Limits) -> Judgement:
    argv = request.argv or ("python3", PROGRAM)
    files = {path: bytes_of(text) for path, text in request.files.items()}
    if request.candidate:
        files[PROGRAM] = request.candidate.encode(_ENCODING, "surrogatepass")
    command = Command((*argv, *case.arguments), stdin=bytes_of(case.stdin), files=files)
    try:
        result = await sandbox.run(command, limits, root=request.options.root)
    except WorkspaceRefusal as refusal:
        return Judgement.failed(f"the program's files cannot be laid out: {str(refusal)[:200]}")
    if result.outcome is not Outcome.EXITED:
        return ended_early(result, f"in case {number}", who="the program")
    return _compared(result, request, case, number).flagged(flags_of_result(result))


def _no_tree(request: ProgramTests) -> Judgement | None:
    """The failure of files that no folder can hold."""
    problem = unplaceable(request.files)
    return None if problem is None else Judgement.failed(problem)


def _compared(result: Result, request: ProgramTests, case: Case, number: int) -> Judgement:
    comparator = case.comparator or request.options.comparator
    if result.stdout_truncated:
        return Judgement.failed(f"the program's output in case {number} is longer than what is kept")
    if result.exit_code != 0 and request.options.require_exit_zero:
        return Judgement.failed(f"the program ended with exit code {result.exit_code} in case {number}")
    if same_output(comparator, bytes_of(case.expected), result.stdout):
        return Judgement.passed()
    failed = Judgement.failed(f"wrong output in case {number}")
    text = result.stdout[:200].decode(_ENCODING, "replace")
    return failed.flagged([Flag.HEDGED_ANSWER] if hedges(text.strip()) else [])


def _flags_of_program(request: ProgramTests) -> set[Flag]:
    pairs = [(case.stdin, case.expected) for case in request.cases]
    raw = [Example((stdin,), expected) for stdin, expected in pairs]
    bare = [Example((stdin.strip(),), expected.strip()) for stdin, expected in pairs]
    found: set[Flag] = set()
    texts = [request.candidate, *(text for path, text in request.files.items() if path.endswith(".py"))]
    for text in filter(None, texts):
        found |= flags_of_source(text, known=[examples(request.visible), raw, bare])
    return found


def _ignores_input(request: ProgramTests) -> set[Flag]:
    """Of a program that failed: whether it could not have looked at what it was given."""
    tree = parsed(request.candidate)
    if tree is None or not any(case.stdin for case in request.cases):
        return set()
    return {Flag.KNOWN_ANSWERS_EMBEDDED} if reads_no_input(tree) or constant_functions(tree) else set()
