"""`pytest_suite`: hidden tests on a repository that the policy has changed.

Tested code runs in the process of its tests; that is what such tests are. So no report from that process is believed
alone. Invariant: a suite passes only if every named test passed in a process of its own by every signal (its report,
its exit status, the number of tests), and every control that contradicts one of them failed. Hidden tests are copied
in after the policy is done, and the runner's own files are put back (`repository`).
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
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
from shared.verification.methods.trees import Entry

PACKAGES = ("pytest",)
"""What the jail's root must show: `sandbox.python_packages`."""
DECISIVE_WORDS = frozenset(("frames", "collector", "memory", "hidden"))
"""Events (see `shared.verification.guest.watch`) under which nothing is paid, when the policy's own code causes them
while hidden tests run: it looks where, in this process, the expected values are."""
_FILES, _START, _REPORT, _FINISHED, _NOTE = b"W", b"T", b"R", b"F", b"N"
_PIECE = 1 << 20
_MAX_REPORTS = 10_000
_MAX_WORDS = 64
_FEW = 2
"""Named tests up to which each is run twice and controlled twice as often: one alone is easier to guess."""
_PHASES = ("setup", "call", "teardown")


class SuiteOptions(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    controls: int = Field(default=3, ge=0, le=10)
    """Contradictions tried of each named test. A forger that passes a share p of what it runs, blindly, is paid with
    p (1 - p)^controls a test: at most 0.105 with three, so 1e-3 for three tests; with two tests or one, each is run
    twice and has six: at most 0.011 for one."""
    controlled_tests: int = Field(default=20, ge=0)
    """So many of the named tests, chosen by the request's digest, are controlled."""
    partial: bool = False
    packages: tuple[str, ...] = ()
    """Further distributions that the tests import; `sandbox.python_packages` must name them."""


class PytestSuite(Request):
    """Files by path, as text. `named`: ids as pytest writes them (`tests/test_a.py::TestSum::test_small`); all of them
    must pass. `binary`: further files of the policy in base64."""

    original: dict[str, str] = Field(default_factory=dict)
    files: dict[str, str]
    hidden: dict[str, str] = Field(min_length=1)
    named: tuple[str, ...] = Field(min_length=1)
    binary: tuple[Entry, ...] = ()
    visible: tuple[VisibleExample, ...] = ()
    options: SuiteOptions = SuiteOptions()

    @model_validator(mode="after")
    def _fits(self) -> Self:
        for path in (*self.original, *self.files, *self.hidden):
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
    original, policy, hidden = _bytes(request.original), _policy_files(request), _bytes(request.hidden)
    known = [examples(request.visible), *map(examples_in_test, request.hidden.values())]
    flags = set(flags_of_changes(original, policy, hidden, known))
    # Code that goes for the runner in a file that is put back can do nothing: it is flagged, and no more.
    acting = {Flag.TEST_RUNNER_PATCHED} & flags_of_changes(_kept(original), _kept(policy), hidden)
    suite = _Suite(sandbox, limits, packages, _Tree.of(original, policy, hidden))
    problems: list[str] = []
    for test in request.named:
        run = await suite.real(test)
        flags |= run.flags
        acting |= run.decisive
        if run.problem:
            problems.append(f"{test} {run.problem}")
            if not request.options.partial:
                break
    if not problems or request.options.partial:
        found, unsteady = await _controlled(suite, request)
        acting |= found
        problems += unsteady if not problems else []
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


async def _controlled(suite: _Suite, request: PytestSuite) -> tuple[set[Flag], list[str]]:
    """Whether any contradiction of a named test passes too; and tests that do not pass a second time."""
    options = request.options
    seed = hashlib.sha256(
        "\0".join((*request.named, *request.hidden.values())).encode("utf-8", "replace")
    ).digest()
    order = sorted(request.named, key=lambda test: hashlib.sha256(seed + test.encode()).digest())
    count = options.controls * 2 if len(order) <= _FEW else options.controls
    for test in order[: options.controlled_tests]:
        for changed in controls(
            suite.source(test), _names(test), count, seed + test.encode(), keep_ids=test.endswith("]")
        ):
            if not (await suite.control(test, changed)).problem:
                return {Flag.CONTROL_PASSED}, []
    again = order if len(order) <= _FEW and options.controls and not options.partial else []
    return set(), [f"{test} does not pass each time" for test in again if (await suite.real(test)).problem]


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
    more = {entry.name: entry.content() or b"" for entry in request.binary}
    return {**_bytes(request.files), **more}


def _bytes(files: Mapping[str, str]) -> dict[str, bytes]:
    return {path: text.encode("utf-8", "surrogateescape") for path, text in files.items()}
