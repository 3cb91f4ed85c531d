"""Domains whose answers are work: every kind is solved by its oracle and not by what comes close, in real sandboxes."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from shared.domains.admission import admit
from shared.domains.base import HELD_OUT_SEED, Answer, CheckRequest, Domain, Instance
from shared.domains.code_repair import CodeRepair
from shared.domains.code_repair.kinds import KINDS as BUGS
from shared.domains.code_repair.kinds import ROUTINES
from shared.domains.played import Played, demonstration_of, play
from shared.domains.terminal import Terminal
from shared.domains.terminal.kinds import KINDS as JOBS
from shared.domains.terminal.puzzle import WORDS
from shared.errors import ConfigError
from shared.sandbox.limits import Limits
from shared.sandbox.sandbox import Sandbox
from shared.sandbox.sessions.session import Session
from shared.verification.methods import pytest_suite, state_diff
from tests.sandbox.machines import MODES, settings_of

GOLDEN = json.loads(Path(__file__).with_name("golden_work.json").read_text())


def digest(domain: Domain, seeds: range, difficulty: Mapping[str, Any]) -> str:
    """Of the instances' own digests."""
    found = [domain.instance(seed, difficulty).digest() for seed in seeds]
    return hashlib.sha256("".join(found).encode()).hexdigest()[:16]


def everything() -> dict[str, str]:
    made = {
        f"terminal/{kind}": digest(Terminal(), range(3), {"kinds": [kind], "jobs": 2, "others": 2})
        for kind in JOBS
    }
    return made | {f"code_repair/{kind}": digest(CodeRepair(), range(3), {"kinds": [kind]}) for kind in BUGS}


def test_instances_come_out_as_they_always_did() -> None:
    """Another digest here means that the domain's version must rise."""
    assert everything() == GOLDEN


def test_there_are_kinds_enough_and_no_word_is_part_of_another() -> None:
    assert len(JOBS) >= 40
    assert len(ROUTINES) >= 20
    assert len(set(WORDS)) == len(WORDS)
    assert not [(one, other) for one in WORDS for other in WORDS if one != other and one in other]


METHODS: dict[str, Any] = {"state_diff": state_diff, "pytest_suite": pytest_suite}
MODELS: dict[str, Any] = {"state_diff": state_diff.StateDiff, "pytest_suite": pytest_suite.PytestSuite}


async def judged(domain: Domain, instance: Instance, answer: Answer, sandbox: Sandbox) -> str:
    @asynccontextmanager
    async def sessions(files: Mapping[str, bytes]) -> AsyncIterator[Session]:
        async with await sandbox.session(files, Limits()) as session:
            yield session

    found = domain.check(instance, await play(answer, instance.files, sessions))
    if not isinstance(found, CheckRequest):
        return found.verdict
    request = MODELS[found.method].model_validate(found.plain()["request"])
    verdict: str = (await METHODS[found.method].check(sandbox, request, Limits())).verdict
    return verdict


@pytest.mark.slow
def test_every_kind_of_job_is_done_by_its_command_and_not_by_the_one_that_comes_close() -> None:
    async def run() -> None:
        domain = Terminal()
        async with Sandbox(settings_of(MODES[0])) as sandbox:
            for number, kind in enumerate(JOBS):
                instance = domain.instance(number, {"kinds": [kind], "lines": 2 + number % 5})
                (puzzle,) = instance.expected.puzzles
                verdicts = [
                    await judged(domain, instance, Played((command,)), sandbox)
                    for command in (puzzle.command, puzzle.wrong)
                ]
                assert verdicts == ["passed", "failed"], (kind, instance, puzzle)

    asyncio.run(run())


@pytest.mark.slow
def test_terminal_is_admitted() -> None:
    """With every near miss and exploit, played twice."""
    report = asyncio.run(
        admit("terminal", difficulties=[{"jobs": 4, "others": 3}], seeds=1, repeats=1, check_seconds=20)
    )
    assert report.admitted, report.findings
    assert report.checks >= 40


@pytest.mark.slow
def test_code_repair_pays_the_mended_line_and_none_of_the_others() -> None:
    """Each answer once: `temper domains admit code_repair` runs them many times, which takes minutes."""

    async def run() -> None:
        domain = CodeRepair()
        instance = domain.instance(4, {"functions": 3, "modules": 2})
        async with Sandbox(settings_of(MODES[0], python_packages=("pytest",))) as sandbox:
            assert await judged(domain, instance, domain.oracle(instance), sandbox) == "passed"
            for miss in (domain.near_misses(instance)[2], *domain.exploits(instance)[:2]):
                assert await judged(domain, instance, miss.answer, sandbox) == miss.verdict, miss

    asyncio.run(run())


@pytest.mark.parametrize("kind", BUGS)
def test_a_bug_shows_in_the_visible_test_and_in_the_hidden_ones(kind: str) -> None:
    """Run here, on our own sources: the right line passes every test, the wrong one fails both files."""
    domain = CodeRepair()
    for seed in (0, HELD_OUT_SEED):
        package = domain.instance(seed, {"kinds": [kind], "functions": 1}).expected
        wrong = package.files[package.path].split("\n")
        right = [*wrong]
        right[package.number - 1] = package.right
        assert wrong[package.number - 1] == package.wrong
        for text in (package.files["test_package.py"], package.hidden):
            assert ran("\n".join(right), text)
            assert not ran("\n".join(wrong), text)


def ran(source: str, tests: str) -> bool:
    place: dict[str, Any] = {}
    exec(source + "\n" + tests.partition("\n")[2], place)
    try:
        for name in [name for name in place if name.startswith("test_")]:
            place[name]()
    except Exception:
        return False
    return True


def test_splits_of_terminal_are_by_what_is_asked() -> None:
    """The same request over other files is the same question."""
    domain, difficulty = Terminal(), {"kinds": ["delete"], "words": 16, "others": 0}
    asked = [{domain.instance(first + n, difficulty).messages[0].content for n in range(40)} for first in (0, HELD_OUT_SEED)]  # fmt: skip
    assert not asked[0] & asked[1]


@pytest.mark.parametrize(
    ("domain", "difficulty", "said"),
    [
        (Terminal(), {"kinds": ["renam"]}, "there is no kind 'renam'; did you mean 'rename'"),
        (Terminal(), {"jobs": 4, "words": 16}, "raise words"),
        (CodeRepair(), {"kinds": ["totl"]}, "did you mean 'total'"),
    ],
)
def test_difficulties_that_cannot_be_are_refused(
    domain: Domain, difficulty: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        domain.instance(0, difficulty)


def test_a_demonstration_is_one_turn_a_command_and_an_answer() -> None:
    turns = demonstration_of(Played(("ls", "mv 'a b' c"), "done"))
    assert [turn.role for turn in turns] == ["assistant"] * 3
    assert json.loads(turns[1].content.split("\n")[1]) == {
        "name": "bash",
        "arguments": {"command": "mv 'a b' c"},
    }
    assert turns[-1].content == "done"
