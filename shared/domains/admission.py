"""The trial that a domain passes before it is trained on.

Invariant: a domain is admitted only when the oracle passes, doing nothing and every exploit do not, each near
miss gets its stated verdict, all of it twice and in two processes, the splits share no question, and somebody has
every tool that a question names. Checks run
in the same killable children as in production, so a domain that hangs or crashes is named and not suffered.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import traceback
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from shared.domains.base import (
    HELD_OUT_SEED,
    Answer,
    Attempt,
    Domain,
    Instance,
    NearMiss,
    ShapeError,
    TrialAnswers,
    is_held_out,
    trial_answers,
)
from shared.domains.played import play
from shared.domains.registry import load_domain
from shared.domains.tool_names import asks_the_domain, own_names, tool_nobody_has
from shared.errors import ConfigError, TemperError, VerificationFault
from shared.sandbox.faults import SandboxFault
from shared.sandbox.limits import Limits
from shared.sandbox.sessions.files import WorkspaceRefusal
from shared.sandbox.sessions.session import Session
from shared.sandbox.settings import SandboxSettings
from shared.verification.answers import shown
from shared.verification.capacity import Demand
from shared.verification.checks import Allowance, Checks
from shared.verification.children import ChildPool
from shared.verification.jails import AnyJails, Jails, machine_budget
from shared.verification.registered import registered, sandbox_here

Trial = Literal[
    "instance", "tools", "oracle", "do_nothing", "near_miss", "exploit", "split", "flaky", "fault"
]
_ENOUGH_FINDINGS = 20
_SANDBOX_S = 60.0
"""Most wall time of one check in a sandbox: the verifier's own default."""
_FAULT = "fault: "


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing wrong: which trial, on which instance, and what was seen."""

    trial: Trial
    seed: int
    difficulty: Mapping[str, Any]
    detail: str
    cause: str = ""
    """What is wrong in words that do not depend on the instance: findings of one cause are one mistake."""

    def __str__(self) -> str:
        return f"{self.trial} (seed {self.seed}, difficulty {dict(self.difficulty)}): {self.detail}"


@dataclass(frozen=True, slots=True)
class AdmissionReport:
    """What the trial saw. `admitted` is the verdict on the domain."""

    domain: str
    version: int
    instances: int
    distinct: int
    """Different questions among them."""
    checks: int
    findings: tuple[Finding, ...]

    @property
    def admitted(self) -> bool:
        return not self.findings

    @property
    def flaky(self) -> bool:
        """Some verdict differed between runs of the same check: quarantine."""
        return any(finding.trial == "flaky" for finding in self.findings)


async def admit(
    name: str,
    *,
    difficulties: Sequence[Mapping[str, Any]] = ({},),
    seeds: int = 16,
    repeats: int = 2,
    check_seconds: float = 5.0,
) -> AdmissionReport:
    """Try the domain `name` on `seeds` instances of each split at each difficulty.

    Every answer is judged `repeats` times in each of two processes; checks that want a sandbox get one. Ends early
    after 20 findings. Raises `ConfigError` for an unknown name, an unusable difficulty, a method that returns another
    type than it must, or a sandbox that is wanted and cannot be had here.
    """
    domain = load_domain(name)
    for difficulty in difficulties:
        domain.parse_difficulty(difficulty)
    jails = Jails(functools.partial(sandbox_here, SandboxSettings()), machine_budget(0, 0))
    async with ChildPool([name], children=2) as pool, contextlib.aclosing(jails):
        checks = Checks(pool, jails, registered)
        player = _Player(jails)
        trial = _Trial(domain, checks, player, runs=2 * repeats, check_seconds=check_seconds)
        for difficulty in difficulties:
            for seed in (*range(seeds), *range(HELD_OUT_SEED, HELD_OUT_SEED + seeds)):
                if len(trial.findings) < _ENOUGH_FINDINGS:
                    await trial.run(seed, difficulty)
    return trial.report()


def first_look(domain: Domain, seed: int, difficulty: Mapping[str, Any]) -> tuple[Instance, TrialAnswers]:
    """One instance, and what the domain says of it. Raises `ConfigError` in one line for whatever goes wrong."""
    try:
        instance = domain.instance(seed, difficulty)
        return instance, trial_answers(domain, instance)
    except TemperError:
        raise
    except Exception as error:
        raise ConfigError(
            f"domain {domain.name!r}, seed {seed}: {raised_at(error)}{type(error).__name__}: {error}"
        ) from error


class _Trial:
    """One domain before its checks, and what was found."""

    def __init__(
        self, domain: Domain, checks: Checks, player: _Player, *, runs: int, check_seconds: float
    ) -> None:
        self._domain = domain
        self._made = checks
        self._player = player
        self._runs = runs
        self._allowance = Allowance(check_seconds, _SANDBOX_S)
        self._questions: dict[bool, set[str]] = {False: set(), True: set()}
        self._instances = 0
        self._checks = 0
        self.findings: list[Finding] = []

    async def run(self, seed: int, difficulty: Mapping[str, Any]) -> None:
        try:
            instance = self._domain.instance(seed, difficulty)
            answers = list(_answers(self._domain, instance))
        except ShapeError:
            raise  # the same at every seed: no trial is needed
        except Exception as error:  # noqa: BLE001 - whatever a domain raises is what is reported
            said = f"{raised_at(error)}{type(error).__name__}: {error}"
            self.findings.append(Finding("instance", seed, difficulty, said, said))
            return
        self._instances += 1
        self._questions[is_held_out(seed)].add(instance.identity)
        if wrong := await self._wrong_tool(instance):
            self.findings.append(Finding("tools", seed, difficulty, wrong, wrong))
        for kind, wanted in answers:
            verdicts = await self._verdicts(instance, wanted.answer)
            self._checks += self._runs
            self.findings.extend(_judged(kind, wanted, instance, verdicts))

    async def _wrong_tool(self, instance: Instance) -> str:
        """What is wrong with the tools that the draft names, in words. An agent program has tools of its own."""
        if self._domain.agent is not None or not asks_the_domain(instance.tools):
            return ""
        try:
            own = await self._own_names(instance)
        except Exception as error:  # noqa: BLE001 - whatever a domain raises is what is reported
            return f"its tools cannot be made: {raised_at(error)}{type(error).__name__}: {error}"
        wrong = tool_nobody_has(instance.tools, own)
        return wrong and f"a draft names {wrong}"

    async def _own_names(self, instance: Instance) -> tuple[str, ...]:
        try:
            return own_names(self._domain, instance)
        except Exception:  # noqa: BLE001 - it may need the sandbox beside which an attempt makes them; told from there
            async with self._player.session(
                {path: text.encode() for path, text in instance.files.items()}
            ) as session:
                return own_names(self._domain, instance, session)

    async def _verdicts(self, instance: Instance, answer: Answer) -> list[str]:
        """One a run. Work is done twice and each result judged in half of the runs: work itself may be flaky."""
        try:
            attempts = [
                await self._player.play(answer, instance.files)
                for _ in range(1 if isinstance(answer, str) else 2)
            ]
        except (SandboxFault, WorkspaceRefusal) as error:
            return [f"{_FAULT}{error}"]
        runs = range(self._runs)
        return await asyncio.gather(
            *(self._verdict(instance, attempts[number % len(attempts)]) for number in runs)
        )

    async def _verdict(self, instance: Instance, attempt: Attempt) -> str:
        """The verdict, or `fault: …` in words."""
        try:
            checked = await self._made.check(instance.reference(), attempt, self._allowance)
        except VerificationFault as error:
            return f"{_FAULT}{error}"
        return checked.judgement.verdict

    def report(self) -> AdmissionReport:
        trained, held_out = self._questions[False], self._questions[True]
        shared = tuple(
            Finding("split", 0, {}, f"question {shown(question, 120)} is in both splits")
            for question in sorted(trained & held_out)
        )
        return AdmissionReport(
            domain=self._domain.name,
            version=self._domain.version,
            instances=self._instances,
            distinct=len(trained | held_out),
            checks=self._checks,
            findings=(*self.findings, *shared),
        )


class _Player:
    """Plays answers in sessions of the sandbox that the checks use."""

    def __init__(self, jails: AnyJails) -> None:
        self._jails = jails

    async def play(self, answer: Answer, files: Mapping[str, str]) -> Attempt:
        return await play(answer, files, self.session)

    @contextlib.asynccontextmanager
    async def session(self, files: Mapping[str, bytes]) -> AsyncIterator[Session]:
        limits = Limits()
        admitted = self._jails.admitted(Demand(1.0, limits.memory_mb))
        async with admitted as box, await box.session(files, limits) as session:
            yield session


def _answers(domain: Domain, instance: Instance) -> Iterator[tuple[Trial, NearMiss]]:
    answers = trial_answers(domain, instance)
    yield "oracle", NearMiss(answers.oracle, "passed")
    yield "do_nothing", NearMiss(answers.do_nothing, "failed")
    for miss in answers.near_misses:
        yield "near_miss", miss
    for exploit in answers.exploits:
        yield "exploit", exploit


def raised_at(error: BaseException) -> str:
    """`mine.py:31: `, the line of code that raised."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}: " if frames else ""


def _judged(kind: Trial, wanted: NearMiss, instance: Instance, verdicts: Sequence[str]) -> Iterator[Finding]:
    """What the verdicts of one answer say against the domain: at most one finding."""
    what = f"{kind.replace('_', ' ')} {shown(str(wanted.answer))}" + (
        f" ({wanted.why})" if wanted.why else ""
    )
    faults = [verdict for verdict in verdicts if verdict.startswith(_FAULT)]
    if faults:
        fault = faults[0].removeprefix(_FAULT)
        yield Finding("fault", instance.seed, instance.difficulty, f"{what}: {fault}", fault)
    elif len(set(verdicts)) > 1:
        seen = ", ".join(sorted(set(verdicts)))
        detail = f"{what}: verdicts differ between runs: {seen}"
        yield Finding("flaky", instance.seed, instance.difficulty, detail)
    elif verdicts[0] != wanted.verdict:
        said = f"verdict {verdicts[0]}, must be {wanted.verdict}"
        yield Finding(
            kind, instance.seed, instance.difficulty, f"{what}: {said}", f"{wanted.why or kind}: {said}"
        )
