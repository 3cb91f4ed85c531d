"""`pytest_suite`: hidden tests on a repository that the policy has changed.

Tested code runs in the process of its tests; that is what such tests are. So no report from that process is believed
alone. Invariant: a suite passes only if every named test passed in a process of its own by every signal (its report,
its exit status, the number of tests), and every control that contradicts one of them failed. Tests and controls come
in an order drawn for each check (`suite_plan`); what is said of honest code does not depend on it: the reason is that
of the first named test that fails, and a control counts only beside a test that passes. Hidden tests are copied in
after the policy is done, and the runner's own files are put back (`repository`).
"""

from __future__ import annotations

import hashlib
import random
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from shared.errors import VerificationFault
from shared.sandbox.limits import Limits
from shared.sandbox.outcome import Outcome
from shared.sandbox.prewarmed.child import Child
from shared.sandbox.sandbox import Sandbox
from shared.verification.detectors.flags import Flag
from shared.verification.detectors.known import examples_in_test
from shared.verification.detectors.runtime import flags_of_events
from shared.verification.detectors.tree import flags_of_changes
from shared.verification.guest.codec import Decoder, Encoder
from shared.verification.guest.kinds import Malformed
from shared.verification.judgement import Judgement
from shared.verification.methods.base import (
    MAX_READ_BYTES,
    Request,
    VisibleExample,
    ended_early,
    examples,
    flags_of_result,
)
from shared.verification.methods.controls import controls, normal
from shared.verification.methods.jails import guest
from shared.verification.methods.repository import has_conftest, is_protected, restored_tree
from shared.verification.methods.suite_plan import Planned, plan
from shared.verification.methods.trees import Entry, FoundEntry, unplaceable

PACKAGES = ("pytest",)
"""What the jail's root must show: `sandbox.python_packages`."""
DECISIVE_WORDS = frozenset(("frames", "collector", "memory", "hidden"))
"""Events (see `shared.verification.guest.watch`) under which nothing is paid, when the policy's own code causes them
while hidden tests run: it looks where, in this process, the expected values are."""
_FILES, _START, _REPORT, _FINISHED, _NOTE = b"W", b"T", b"R", b"F", b"N"
_PIECE = 1 << 20
_MAX_REPORTS = 10_000
_MAX_WORDS = 64
_PHASES = ("setup", "call", "teardown")


class SuiteOptions(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    controls: int = Field(default=3, ge=0, le=10)
    """Contradictions tried of each named test. A forger that passes a share p of what it runs, blindly, is paid with
    p (1 - p)^controls a test: at most 0.105 with three, so 1e-3 for three tests; with two tests or one, each is run
    twice and has six: at most 0.011 for one. One that could remember other runs and takes the first it sees for the
    real one is paid with 1 / (1 + controls) a test, a seventh for one alone: that nothing is left for it to remember is
    the sandbox's doing, and this is what there is if that fails."""
    controlled_tests: int = Field(default=20, ge=0)
    """So many of the named tests, chosen by the request's digest, are controlled."""
    partial: bool = False
    packages: tuple[str, ...] = ()
    """Further distributions that the tests import; `sandbox.python_packages` must name them."""


class PytestSuite(Request):
    """Files by path, as text; those of the policy that are no tree are its failure. `named`: ids as pytest writes them (`tests/test_a.py::TestSum::test_small`); all of them
    must pass. `binary`: further files of the policy in base64."""

    original: dict[str, str] = Field(default_factory=dict)
    files: dict[str, str]
    hidden: dict[str, str] = Field(min_length=1)
    named: tuple[str, ...] = Field(min_length=1)
    binary: tuple[FoundEntry, ...] = ()
    visible: tuple[VisibleExample, ...] = ()
    options: SuiteOptions = SuiteOptions()

    @model_validator(mode="after")
    def _fits(self) -> Self:
        for path in (*self.original, *self.hidden):
            Entry(path=path)
        known = {**self.original, **self.hidden}
        for test in self.named:
            path, separator, _ = test.partition("::")
            if not separator or path not in known:
                raise ValueError(
                    f"named test {test!r} is in no hidden or original file: write it 'path::name'"
                )
        return self


@dataclass(slots=True)
class _Run:
    """What one process said of one test. `problem` is empty where all signals agree that it passed."""

    problem: str = ""
    flags: set[Flag] = field(default_factory=set)
    decisive: set[Flag] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class _Tree:
    """What the tests run in: all files, those that are the policy's work, and the hidden ones."""

    files: Mapping[str, bytes]
    own: tuple[str, ...]
    hidden: tuple[str, ...]

    @classmethod
    def of(
        cls, original: Mapping[str, bytes], policy: Mapping[str, bytes], hidden: Mapping[str, bytes]
    ) -> _Tree:
        files = restored_tree(original, policy, hidden)
        own = [
            path for path, content in files.items() if path not in hidden and original.get(path) != content
        ]
        return cls(files, tuple(own), tuple(hidden))


async def check(sandbox: Sandbox, request: PytestSuite, limits: Limits) -> Judgement:
    """Raises `SandboxFault`, and `VerificationFault` where the root does not show what the tests need."""
    packages = (*PACKAGES, *request.options.packages)
    missing = [name for name in packages if name not in sandbox.settings.python_packages]
    if missing:
        raise VerificationFault(
            f"pytest_suite needs {missing[0]!r} in sandbox.python_packages: name it there"
        )
    problem = unplaceable(request.files) or next(
        filter(None, (entry.problem() for entry in request.binary)), None
    )
    if problem is not None:
        return Judgement.failed(problem)
    original, policy, hidden = _bytes(request.original), _policy_files(request), _bytes(request.hidden)
    known = [examples(request.visible), *map(examples_in_test, request.hidden.values())]
    flags = set(flags_of_changes(original, policy, hidden, known))
    # Code that goes for the runner in a file that is put back can do nothing: it is flagged, and no more.
    acting = {Flag.TEST_RUNNER_PATCHED} & flags_of_changes(_kept(original), _kept(policy), hidden)
    suite = _Suite(sandbox, limits, packages, _Tree.of(original, policy, hidden))
    partial = request.options.partial
    found = await _run_all(suite, _planned(suite, request), to_the_end=partial)
    problems: list[str] = []
    forged = False
    for test in request.named:
        runs = found.real.get(test) or [await suite.real(test)]
        flags |= runs[0].flags
        acting |= runs[0].decisive
        problem = runs[0].problem or ("does not pass each time" if any(run.problem for run in runs) else "")
        if problem:
            problems.append(f"{test} {problem}")
            if not partial:
                break
        forged |= test in found.contradicted and not problem
    if forged and (partial or not problems):
        acting.add(Flag.CONTROL_PASSED)
    return _verdict(request, problems, acting).flagged(flags | acting)


def _verdict(request: PytestSuite, problems: list[str], decisive: set[Flag]) -> Judgement:
    total = len(request.named)
    if decisive:
        return Judgement.failed(f"the results are not to be believed: {', '.join(sorted(decisive))}")
    if not problems:
        return Judgement.passed(f"{total} of {total} tests")
    if request.options.partial and len(problems) < total:
        right = total - len(problems)
        return Judgement.partial(right / total, f"{right} of {total} tests; {problems[0]}")
    return Judgement.failed(problems[0])


@dataclass(slots=True)
class _Found:
    """What was seen: the runs of each test, and the tests of which a control passed."""

    real: dict[str, list[_Run]] = field(default_factory=dict)
    contradicted: set[str] = field(default_factory=set)


def _planned(suite: _Suite, request: PytestSuite) -> list[Planned]:
    """Which contradictions there are depends on the request alone, their order on this check."""
    options = request.options
    text = "\0".join((*request.named, *request.hidden.values()))
    seed = hashlib.sha256(text.encode("utf-8", "replace")).digest()

    def controls_of(test: str, count: int) -> list[str]:
        its_seed = seed + test.encode("utf-8", "replace")
        return controls(suite.source(test), _names(test), count, its_seed, keep_ids=test.endswith("]"))

    return plan(
        request.named, controls_of, controls=options.controls, controlled_tests=options.controlled_tests,
        again=not options.partial, seed=seed, dice=random.SystemRandom(),
    )  # fmt: skip


async def _run_all(suite: _Suite, runs: Sequence[Planned], *, to_the_end: bool) -> _Found:
    """In order; up to the first that goes wrong, where not to the end: nothing can be paid after that."""
    found = _Found()
    for one in runs:
        if one.control is None:
            run = await suite.real(one.test)
            found.real.setdefault(one.test, []).append(run)
            wrong = bool(run.problem)
        else:
            wrong = not (await suite.control(one.test, one.control)).problem
            if wrong:
                found.contradicted.add(one.test)
        if wrong and not to_the_end:
            break
    return found


def _names(test: str) -> tuple[str, ...]:
    """`a.py::TestSum::test_small[1]` → `("TestSum", "test_small")`."""
    *classes, last = test.split("::")[1:]
    return (*classes, last.partition("[")[0])


class _Suite:
    """Single tests, each in a process of its own."""

    def __init__(self, sandbox: Sandbox, limits: Limits, packages: tuple[str, ...], tree: _Tree) -> None:
        self._sandbox, self._limits, self._packages, self._tree = sandbox, limits, packages, tree

    def source(self, test: str) -> str:
        return self._tree.files[test.partition("::")[0]].decode("utf-8", "surrogateescape")

    async def real(self, test: str) -> _Run:
        return await self.control(test, normal(self.source(test)))

    async def control(self, test: str, source: str) -> _Run:
        """The named test, with its file as `source` has it."""
        path = test.partition("::")[0]
        return await self._run({**self._tree.files, path: source.encode("utf-8", "surrogateescape")}, test)

    async def _run(self, tree: Mapping[str, bytes], test: str) -> _Run:
        token = secrets.token_bytes(16)
        async with guest(self._sandbox, "suite", self._limits, imports=self._packages) as child:
            await _send_files(child, tree)
            job = (token, test, self._tree.own, self._tree.hidden, has_conftest(tree))
            await child.send(_START + Encoder().encode(job))
            reports, end, words = await _listen(child, token)
            result = await child.finish()
        result.raise_for_infrastructure()
        run = _Run(flags=flags_of_result(result) | flags_of_events(words))
        run.decisive |= flags_of_events(words & DECISIVE_WORDS)
        if result.outcome is not Outcome.EXITED or end is None:
            judged = ended_early(result, "while the tests ran", who="the tested code")
            run.flags |= {Flag(flag) for flag in judged.flags}
            run.problem = f"did not end: {judged.reason}"
            return run
        run.problem = _problem(test, reports, end, result.exit_code)
        if run.problem and end[0] == 0 and not any(outcome == "skipped" for *_, outcome, _ in reports):
            run.flags.add(Flag.TEST_RUNNER_PATCHED)  # the signals contradict each other
        return run


def _problem(
    test: str, reports: list[tuple[str, str, str, bool]], end: tuple[int, int], code: int | None
) -> str:
    """Why the signals do not all say that this test passed; empty where they do."""
    status, collected = end
    tests = {name for name, *_ in reports}
    if not tests or collected == 0:
        return "was not run"
    if any(name != test and not name.startswith(f"{test}[") for name in tests) or collected != len(tests):
        return "was not the only test that ran"
    for name, phase, outcome, expected in reports:
        if expected or outcome == "skipped":
            return "was skipped, or expected to fail"
        if outcome != "passed":
            return f"failed in its {phase}" if phase in _PHASES else f"failed ({name[:80]!a})"
    if any({phase for name, phase, *_ in reports if name == one} != set(_PHASES) for one in tests):
        return "did not go through all its phases"
    return "" if status == 0 and code == 0 else "ended with an exit status that is not 0"


async def _send_files(child: Child, tree: Mapping[str, bytes]) -> None:
    """In pieces of a megabyte or so; a file may be in several of them."""
    batch: list[tuple[str, bytes]] = []
    size = 0
    for path, content in tree.items():
        for at in range(0, max(1, len(content)), _PIECE):
            batch.append((path, content[at : at + _PIECE]))
            size += len(batch[-1][1])
            if size >= _PIECE:
                await child.send(_FILES + Encoder().encode(batch))
                batch, size = [], 0
    await child.send(_FILES + Encoder().encode(batch))


async def _listen(
    child: Child, token: bytes
) -> tuple[list[tuple[str, str, str, bool]], tuple[int, int] | None, set[str]]:
    """Reports under our token, the end's (exit status, tests collected), None where no end came, and events."""
    reports: list[tuple[str, str, str, bool]] = []
    words: set[str] = set()
    while (frame := await child.receive()) is not None:
        if len(frame) > MAX_READ_BYTES:
            continue
        if frame[:1] == _NOTE:
            if len(words) < _MAX_WORDS:
                words.add(frame[1:40].decode("ascii", "replace"))
            continue
        try:
            said, *rest = Decoder().decode(frame[1:])
            if said != token:
                continue
            if frame[:1] == _FINISHED:
                status, collected = rest
                return reports, (int(status), int(collected)), words
            name, phase, outcome, expected = rest
            if frame[:1] == _REPORT and len(reports) < _MAX_REPORTS:
                reports.append((str(name), str(phase), str(outcome), bool(expected)))
        except (Malformed, ValueError, TypeError):
            continue
    return reports, None, words


def _kept(files: Mapping[str, bytes]) -> dict[str, bytes]:
    return {path: content for path, content in files.items() if not is_protected(path)}


def _policy_files(request: PytestSuite) -> dict[str, bytes]:
    """Under plain names: `./a.py` beside a hidden `a.py` would be written in front of it."""
    more = {entry.name: entry.content() or b"" for entry in request.binary}
    return {**{str(PurePosixPath(path)): text for path, text in _bytes(request.files).items()}, **more}


def _bytes(files: Mapping[str, str]) -> dict[str, bytes]:
    return {path: text.encode("utf-8", "surrogateescape") for path, text in files.items()}
