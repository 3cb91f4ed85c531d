"""Killable children: a fault costs its own check, is told by kind, and never becomes a number."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from shared.contracts.task import DomainRef
from shared.domains.base import Attempt
from shared.domains.registry import load_domain
from shared.errors import ConfigError, VerificationFault
from shared.verification.children import Checked, ChildPool
from shared.verification.faults import CheckerDied, CheckTimedOut, fault_verdict
from tests.verification.faulty import FAULTY, Faulty

T = TypeVar("T")
REFERENCE = Faulty().instance(1).reference()
RIGHT = Attempt(Faulty().oracle(Faulty().instance(1)))


Body = Callable[[ChildPool], Coroutine[Any, Any, T]]


class OnePool:
    """One child for the tests of this file: each leaves it, or its successor, in order."""

    def __init__(self, runner: asyncio.Runner) -> None:
        self._runner = runner
        self.pool = ChildPool((FAULTY,))

    def __call__(self, body: Body[T]) -> T:
        async def run() -> T:
            assert (await self.pool.check(REFERENCE, RIGHT, 5.0)).judgement.verdict == "passed"
            return await body(self.pool)

        return self._runner.run(run())


@pytest.fixture(scope="module")
def with_pool() -> Iterator[OnePool]:
    with asyncio.Runner() as runner:
        one = OnePool(runner)
        yield one
        runner.run(one.pool.close())


def with_own_pool(body: Body[T], children: int, *domains: str) -> T:
    async def run() -> T:
        async with ChildPool(domains or (FAULTY,), children=children) as pool:
            return await body(pool)

    return asyncio.run(run())


async def fault_of(check: Awaitable[Checked]) -> VerificationFault:
    with pytest.raises(VerificationFault) as caught:
        await check
    return caught.value


def is_gone(pid: int) -> bool:
    """No process, and no zombie of ours either."""
    return not Path(f"/proc/{pid}").exists()


def test_right_and_wrong_answers_get_their_verdict(with_pool: OnePool) -> None:
    async def body(pool: ChildPool) -> list[Checked]:
        attempts = (RIGHT, Attempt("other"), Attempt("busy"), Attempt("unverifiable"))
        return [await pool.check(REFERENCE, attempt, 5.0) for attempt in attempts]

    passed, failed, busy, unverifiable = with_pool(body)
    assert (passed.judgement.verdict, passed.judgement.reward) == ("passed", 1.0)
    assert (failed.judgement.verdict, failed.judgement.reward) == ("failed", 0.0)
    assert (unverifiable.judgement.verdict, unverifiable.judgement.reward) == ("unverifiable", None)
    assert 0.05 < busy.cpu_seconds < busy.wall_seconds + 0.05, "the clock of the processor ticks coarsely"


def test_a_domain_that_misbehaves_is_a_fault_and_its_child_lives_on(with_pool: OnePool) -> None:
    expected = {
        "raise": "KeyError: 'checker bug'",
        "exit": "SystemExit",
        "recursion": "RecursionError",
        "nan": "must be in [0, 1]",
        "negative": "must be in [0, 1]",
        "number": "returned float",
        "nothing": "returned NoneType",
        "ours": "the simulator is down",
    }

    async def body(pool: ChildPool) -> None:
        (pid,) = pool.pids
        for behaviour, words in expected.items():
            fault = await fault_of(pool.check(REFERENCE, Attempt(behaviour), 5.0))
            assert words in str(fault), behaviour
            assert fault_verdict(fault) == "infrastructure", behaviour
            assert pool.pids == (pid,), behaviour
        assert (await pool.check(REFERENCE, RIGHT, 5.0)).judgement.verdict == "passed"

    with_pool(body)


@pytest.mark.parametrize("behaviour", ["spin", "sleep"])
def test_past_its_budget_a_check_is_killed_and_the_child_replaced(with_pool: OnePool, behaviour: str) -> None:
    async def body(pool: ChildPool) -> None:
        (pid,) = pool.pids
        started = time.perf_counter()
        fault = await fault_of(pool.check(REFERENCE, Attempt(behaviour), 0.3))
        assert time.perf_counter() - started < 2.0
        assert isinstance(fault, CheckTimedOut) and fault_verdict(fault) == "timeout_infra"
        assert "0.3 s" in str(fault)
        assert is_gone(pid)
        assert (await pool.check(REFERENCE, RIGHT, 5.0)).judgement.verdict == "passed"
        assert pool.pids != (pid,)

    with_pool(body)


def test_a_child_that_dies_says_how_and_is_replaced(with_pool: OnePool) -> None:
    async def body(pool: ChildPool) -> None:
        for behaviour, words in {"crash": "by SIGSEGV", "leave": "with exit code 7: last words"}.items():
            (pid,) = pool.pids
            fault = await fault_of(pool.check(REFERENCE, Attempt(behaviour), 5.0))
            assert isinstance(fault, CheckerDied) and words in str(fault)
            assert fault_verdict(fault) == "infrastructure"
            assert is_gone(pid)
            assert (await pool.check(REFERENCE, RIGHT, 5.0)).judgement.verdict == "passed"
            assert pool.pids != (pid,)

    with_pool(body)


def test_out_of_memory_is_a_fault_and_the_child_is_replaced(with_pool: OnePool) -> None:
    async def body(pool: ChildPool) -> None:
        (pid,) = pool.pids
        assert "out of memory" in str(await fault_of(pool.check(REFERENCE, Attempt("memory"), 5.0)))
        assert is_gone(pid)
        assert (await pool.check(REFERENCE, RIGHT, 5.0)).judgement.verdict == "passed"

    with_pool(body)


def test_a_timeout_told_by_the_domain_is_ours_too(with_pool: OnePool) -> None:
    async def body(pool: ChildPool) -> VerificationFault:
        return await fault_of(pool.check(REFERENCE, Attempt("ours late"), 5.0))

    assert fault_verdict(with_pool(body)) == "timeout_infra"


def test_what_a_domain_prints_or_reads_does_not_touch_the_protocol(with_pool: OnePool) -> None:
    async def body(pool: ChildPool) -> None:
        for behaviour in ("chatter", "stdin"):
            assert (await pool.check(REFERENCE, Attempt(behaviour), 5.0)).judgement.verdict == "passed"
        reason = (await pool.check(REFERENCE, Attempt("surrogate"), 5.0)).judgement.reason
        assert len(reason.encode()) < 10_000 and reason.startswith("\\ud800")

    with_pool(body)


def test_a_child_inherits_neither_descriptors_nor_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "do not pass on")
    held = (tmp_path / "held").open("w")
    os.set_inheritable(held.fileno(), True)

    async def body(pool: ChildPool) -> tuple[str, str]:
        descriptors = (await pool.check(REFERENCE, Attempt("descriptors"), 5.0)).judgement.reason
        return descriptors, (await pool.check(REFERENCE, Attempt("environment"), 5.0)).judgement.reason

    descriptors, environment = with_own_pool(body, 1)
    held.close()
    assert len(descriptors.split()) == 6, "stdin, stdout, stderr, the two private pipes, the listing itself"
    assert environment == ""


def test_a_slow_check_does_not_hold_the_others_up() -> None:
    async def body(pool: ChildPool) -> float:
        slow = asyncio.create_task(fault_of(pool.check(REFERENCE, Attempt("sleep"), 1.5)))
        await asyncio.sleep(0)
        started = time.perf_counter()
        for _ in range(50):
            await pool.check(REFERENCE, RIGHT, 5.0)
        quick = time.perf_counter() - started
        assert not slow.done()
        await slow
        return quick

    assert with_own_pool(body, 2) < 1.4


def test_a_cancelled_check_takes_its_child_with_it(with_pool: OnePool) -> None:
    async def body(pool: ChildPool) -> None:
        (pid,) = pool.pids
        check = asyncio.create_task(pool.check(REFERENCE, Attempt("sleep"), 60.0))
        await asyncio.sleep(0.1)
        check.cancel()
        with pytest.raises(asyncio.CancelledError):
            await check
        assert is_gone(pid)
        assert (await pool.check(REFERENCE, RIGHT, 5.0)).judgement.verdict == "passed"

    with_pool(body)


def test_a_child_killed_from_outside_is_replaced(with_pool: OnePool) -> None:
    async def body(pool: ChildPool) -> None:
        (pid,) = pool.pids
        os.kill(pid, signal.SIGKILL)
        while pool.pids:
            await asyncio.sleep(0.01)
        assert (await pool.check(REFERENCE, RIGHT, 5.0)).judgement.verdict == "passed"

    with_pool(body)


def test_closing_leaves_no_process_and_refuses_more() -> None:
    async def run() -> None:
        pool = ChildPool([FAULTY], children=2)
        await pool.start()
        pids = pool.pids
        assert len(pids) == 2
        check = asyncio.create_task(fault_of(pool.check(REFERENCE, Attempt("sleep"), 60.0)))
        await asyncio.sleep(0.1)
        await pool.close()
        await check
        assert all(is_gone(pid) for pid in pids)
        assert "closing" in str(await fault_of(pool.check(REFERENCE, RIGHT, 5.0)))

    asyncio.run(run())


def test_unsupervised_a_child_ends_by_itself(with_pool: OnePool) -> None:
    """The parent is gone (here: frozen out of the budget), and the check never ends."""

    async def body(pool: ChildPool) -> None:
        (pid,) = pool.pids
        child = pool._children[0]
        from shared.verification.protocol import Question, write_question

        process = child._process
        assert process is not None and process.stdin is not None
        process.stdin.write(write_question(Question(REFERENCE, Attempt("sleep"), 0.1)))
        await process.stdin.drain()
        assert await asyncio.wait_for(process.wait(), 5.0) == -signal.SIGALRM
        assert is_gone(pid)

    with_pool(body)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": 2}, "version 1 here and 2 in the task"),
        ({"name": "arithmetic"}, "'arithmetic' is not configured here; configured: faulty"),
        ({"name": "os:system"}, "'os:system' is not configured here"),
        ({"instance_digest": "0" * 64}, "0" * 64),
        ({"difficulty": {"x": 1}}, "unknown key 'x'"),
    ],
)
def test_a_reference_that_does_not_fit_is_a_fault_that_names_both_sides(
    with_pool: OnePool, change: dict[str, Any], words: str
) -> None:
    async def body(pool: ChildPool) -> VerificationFault:
        return await fault_of(pool.check(REFERENCE.model_copy(update=change), RIGHT, 5.0))

    fault = with_pool(body)
    assert words in str(fault)
    if "instance_digest" in change:
        assert REFERENCE.instance_digest in str(fault)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("arithmetc", "did you mean 'arithmetic'"),
        ("tests.verification.absent:X", "cannot be imported"),
        ("tests.verification.faulty:Absent", "has no 'Absent'"),
        ("tests.verification.faulty:FAULTY", "must be a Domain"),
    ],
)
def test_a_domain_that_cannot_be_loaded_stops_the_start(name: str, words: str) -> None:
    async def body(pool: ChildPool) -> None:
        raise AssertionError("started")

    with pytest.raises(ConfigError, match=words):
        with_own_pool(body, 2, name)


def test_one_check_costs_under_a_millisecond_beside_its_own_time() -> None:
    domain = load_domain("arithmetic")
    references: list[DomainRef] = [domain.instance(seed).reference() for seed in range(50)]

    async def body(pool: ChildPool) -> float:
        await pool.check(references[0], Attempt("1"), 5.0)
        best = float("inf")
        for _ in range(5):
            started = time.perf_counter()
            for _ in range(4):
                for reference in references:
                    await pool.check(reference, Attempt("1"), 5.0)
            best = min(best, (time.perf_counter() - started) / (4 * len(references)))
        return best

    assert with_own_pool(body, 1, "arithmetic") < 1.5e-3, (
        "the bound is one millisecond on a machine of its own"
    )
