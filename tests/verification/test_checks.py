"""Checks in a real sandbox: verdicts are the policy's, everything that is ours is a fault, nothing outlives its time."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from shared.errors import ConfigError, VerificationFault
from shared.sandbox.faults import SandboxFault
from shared.sandbox.sandbox import Sandbox
from shared.sandbox.settings import SandboxSettings
from shared.verification.capacity import Demand
from shared.verification.checks import Allowance, Checks
from shared.verification.children import Checked, ChildPool
from shared.verification.faults import CheckTimedOut, CheckTooLate
from shared.verification.jails import Jails, machine_budget, open_sandbox
from shared.verification.judgement import Attempt
from shared.verification.registered import registered, sandbox_packages
from tests.brokers import eventually
from tests.verification.sandboxed import PRINTING, WALL_S, Printing, methods

DOMAIN = Printing()
INSTANCE = DOMAIN.instance(5)
RIGHT = DOMAIN.oracle(INSTANCE)
AMPLE = Allowance(child_s=10.0, sandbox_s=20.0)
BUDGET = Demand(2, 2048)


class Place:
    """Children, a sandbox that is opened on demand, and the boxes that were opened."""

    def __init__(self, children: ChildPool, settings: SandboxSettings, budget: Demand) -> None:
        self.opened: list[Sandbox] = []
        self.settings = settings
        self.jails: Jails[Sandbox] = Jails(self.open, budget)
        self.checks = Checks(children, self.jails, methods)

    async def open(self) -> Sandbox:
        box = await open_sandbox(self.settings)
        self.opened.append(box)
        return box

    async def check(self, answer: str, allowance: Allowance = AMPLE) -> Checked:
        return await self.checks.check(INSTANCE.reference(), Attempt(answer), allowance)


@asynccontextmanager
async def place(
    folder: Path, budget: Demand = BUDGET, settings: SandboxSettings | None = None
) -> AsyncIterator[Place]:
    chosen = settings or SandboxSettings(allow_weaker=("rlimits_only",))
    async with ChildPool([PRINTING]) as children:
        made = Place(children, chosen, budget)
        try:
            yield made
        finally:
            await made.jails.aclose()


def in_place(folder: Path, body: Callable[[Place], Awaitable[None]], budget: Demand = BUDGET) -> None:
    async def whole() -> None:
        async with place(folder, budget) as it:
            await body(it)

    asyncio.run(whole())


def test_programs_are_judged_by_what_they_do(tmp_path: Path) -> None:
    async def body(it: Place) -> None:
        assert (await it.check("")).judgement.verdict == "failed"
        assert not it.opened, "a judgement of the domain itself opens no sandbox"
        right, wrong, endless = await asyncio.gather(
            it.check(RIGHT), it.check("print(-1)"), it.check("while True: pass")
        )
        assert (right.judgement.verdict, right.judgement.reward, right.ran_code) == ("passed", 1.0, True)
        assert (wrong.judgement.verdict, wrong.judgement.reward) == ("failed", 0.0)
        assert endless.judgement.verdict == "failed" and endless.wall_seconds >= WALL_S
        assert len(it.opened) == 1
        assert (it.jails.running, it.jails.waiting) == (0, 0)

    in_place(tmp_path, body)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("no such method", "'no_such_method' is not known"),
        ("bad request", "printed_text check: .*source"),
        ("bad limit", "limits of its check: .*wall_seconds"),
        ("long program", "declares 1000 s for one program .* allows 20 s: raise verifier.sandbox_seconds"),
        ("long check", "declares 1000 s for a check"),
        ("much memory", "MiB of memory .* raise .*sandbox_memory_mb"),
        ("returns text", "returned str: it must return a Judgement"),
        ("object", "not plain data"),
        ("times out", "'times_out' let a timeout of its own through: a wait of the method"),
    ],
)
def test_what_a_domain_asks_wrongly_is_a_fault_in_words(tmp_path: Path, answer: str, words: str) -> None:
    async def body(it: Place) -> None:
        with pytest.raises(VerificationFault, match=words):
            await it.check(answer)

    in_place(tmp_path, body)


def test_a_check_past_its_budget_is_ended_with_all_its_programs(tmp_path: Path) -> None:
    """Each run is within its own wall limit, together they are not within the check's."""
    slow = "# runs 50\nimport time\ntime.sleep(1)\nprint(1)"

    async def body(it: Place) -> None:
        expected = INSTANCE.expected
        with pytest.raises(CheckTimedOut, match=r"passed its budget of 6 s") as caught:
            await it.check(slow.replace("print(1)", f"print({expected})"))
        assert not isinstance(caught.value, CheckTooLate)
        assert (it.jails.running, it.jails.waiting) == (0, 0)
        assert (await it.check(RIGHT)).judgement.verdict == "passed"

    in_place(tmp_path, body)


def test_a_program_is_not_begun_when_its_deadline_is_nearer_than_its_limit(tmp_path: Path) -> None:
    async def body(it: Place) -> None:
        with pytest.raises(CheckTooLate, match="grants a program 3 s .*not begun"):
            await it.check(RIGHT, Allowance(10.0, 20.0, left_s=WALL_S - 0.5))
        assert not it.opened
        assert (await it.check(RIGHT, Allowance(10.0, 20.0, left_s=60.0))).judgement.verdict == "passed"

    in_place(tmp_path, body)


def test_what_waits_for_its_turn_until_it_is_too_late_is_a_fault_of_ours(tmp_path: Path) -> None:
    async def body(it: Place) -> None:
        long = asyncio.create_task(it.check("import time\ntime.sleep(2.5)"))
        while not it.jails.running:
            await asyncio.sleep(0.01)
        with pytest.raises(CheckTooLate):
            await it.check(RIGHT, Allowance(10.0, 20.0, left_s=WALL_S + 1.0))
        assert (await long).judgement.verdict == "failed"

    in_place(tmp_path, body, Demand(1, 2048))


def test_a_lost_keeper_costs_the_checks_that_ran_and_the_next_gets_a_new_one(tmp_path: Path) -> None:
    async def body(it: Place) -> None:
        running = asyncio.create_task(it.check("import time\ntime.sleep(2.5)"))
        while not it.jails.running or not it.opened:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.3)
        os.kill(it.opened[0].keeper.pid, signal.SIGKILL)
        with pytest.raises(SandboxFault):
            await running
        assert (await it.check(RIGHT)).judgement.verdict == "passed"
        assert len(it.opened) == 2
        pid = it.opened[0].keeper.pid
        eventually(lambda: not pid or not Path(f"/proc/{pid}").exists(), what="the end of the lost keeper")

    in_place(tmp_path, body)


def test_a_jail_binary_that_is_missing_is_a_fault_until_it_is_there(tmp_path: Path) -> None:
    async def body(it: Place) -> None:
        sound = it.settings
        it.settings = sound.model_copy(update={"nsjail": str(tmp_path / "no-nsjail")})
        for _ in range(2):
            with pytest.raises((VerificationFault, ConfigError), match="no-nsjail"):
                await it.check(RIGHT)
        it.settings = sound
        assert (await it.check(RIGHT)).judgement.verdict == "passed"

    in_place(tmp_path, body)


def test_checks_share_the_budget(tmp_path: Path) -> None:
    """One jail's memory at a time: four checks take turns, and all get their verdict."""

    async def body(it: Place) -> None:
        most = 0

        async def look() -> None:
            nonlocal most
            while True:
                most = max(most, it.jails.running)
                await asyncio.sleep(0.005)

        looking = asyncio.create_task(look())
        found = await asyncio.gather(*(it.check(RIGHT) for _ in range(4)))
        looking.cancel()
        assert [checked.judgement.verdict for checked in found] == ["passed"] * 4
        assert most == 1

    in_place(tmp_path, body, Demand(8, 2 * 128))


@pytest.mark.parametrize("while_opening", [False, True])
def test_closing_ends_what_waits_and_what_runs_as_faults(tmp_path: Path, while_opening: bool) -> None:
    async def body(it: Place) -> None:
        checks = [asyncio.create_task(it.check("import time\ntime.sleep(2.5)")) for _ in range(3)]
        while not it.jails.running or not it.jails.waiting or not (it.opened or while_opening):
            await asyncio.sleep(0.01)
        await it.jails.aclose()
        found = await asyncio.gather(*checks, return_exceptions=True)
        assert all(isinstance(each, VerificationFault) for each in found), found
        with pytest.raises(SandboxFault, match="closing"):
            await it.check(RIGHT)

    in_place(tmp_path, body, Demand(1, 2048))


def test_without_a_sandbox_such_a_domain_is_a_fault() -> None:
    async def body() -> None:
        async with ChildPool([PRINTING]) as children:
            checks = Checks(children, None, methods)
            with pytest.raises(VerificationFault, match="needs a sandbox, and there is none"):
                await checks.check(INSTANCE.reference(), Attempt(RIGHT), AMPLE)
            with pytest.raises(VerificationFault, match="printed_text check"):
                await children.check(INSTANCE.reference(), Attempt(RIGHT), 5.0)

    asyncio.run(body())


def test_a_method_that_runs_nothing_of_the_policy_needs_no_sandbox() -> None:
    async def body() -> None:
        async with ChildPool([PRINTING]) as children:
            checks = Checks(children, None, methods)
            checked = await checks.check(INSTANCE.reference(), Attempt("no jail"), AMPLE)
            assert (checked.judgement.verdict, checked.ran_code) == ("passed", False)

    asyncio.run(body())


def test_a_method_without_a_jail_holds_up_nothing_else_and_has_its_budget() -> None:
    async def body() -> None:
        async with ChildPool([PRINTING]) as children:
            checks = Checks(children, None, methods)
            check = asyncio.create_task(checks.check(INSTANCE.reference(), Attempt("computes"), AMPLE))
            turns = 0
            while not check.done():
                await asyncio.sleep(0.01)
                turns += 1
            assert isinstance(check.exception(), CheckTimedOut)
            assert turns > 5, "the loop stood still while the method computed"

    asyncio.run(body())


def test_methods_of_this_build_are_found_by_name_and_their_packages_are_shown() -> None:
    method = registered("python_function_tests")
    assert method.jailed and {"candidate", "entry_point", "test"} <= set(method.request.model_fields)
    assert not registered("state_diff").jailed
    with pytest.raises(VerificationFault, match=r"'sql_results' is not known.*did you mean 'sql_result'"):
        registered("sql_results")
    packages = sandbox_packages(["numpy", "mine"])
    assert packages[:2] == ("numpy", "mine") and "pytest" in packages
    assert len(set(packages)) == len(packages)


def test_a_fresh_child_has_served_nobody() -> None:
    async def body() -> None:
        async with ChildPool([PRINTING]) as children:
            (before,) = children.pids
            await children.ask(INSTANCE.reference(), Attempt(""), 5.0)
            assert children.pids == (before,)
            await children.ask(INSTANCE.reference(), Attempt(""), 5.0, fresh=True)
            assert children.pids != (before,)

    asyncio.run(body())


def test_the_machine_has_a_budget_where_none_is_set() -> None:
    found = machine_budget(0, 0)
    assert found.cpus == len(os.sched_getaffinity(0)) and found.memory_mb > 256
    assert machine_budget(1.5, 512) == Demand(1.5, 512)
