"""The verifier with programs to run: verdicts from the sandbox, deadlines handed down, the same record every time."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from shared.bus.records import header
from shared.contracts import Headers, Reward, Trajectory
from shared.domains.base import Instance
from shared.domains.registry import load_domain
from shared.settings import Settings
from tests.services.bench import Bench, bench, verifying
from tests.services.coding import CODING, Coding
from tests.services.trajectories import trajectory
from tests.verification.sandboxed import PRINTING, WALL_S, Printing, methods

MakeSettings = Callable[..., Settings]
NUMBER = Printing().instance(5)
RIGHT = Printing().oracle(NUMBER)
SUM = load_domain("arithmetic").instance(7)
QUIET = {"share": 0.0, "repeat_share": 0.0, "rules": []}
WEAKER = {"allow_weaker": ["rlimits_only"]}


def printing(make_settings: MakeSettings, **overrides: object) -> Settings:
    domains = [{"name": PRINTING}, {"name": "arithmetic"}]
    return make_settings(**{"domains": domains, "auditor": QUIET, "sandbox": WEAKER, **overrides})


def program(settings: Settings, source: str, **changes: object) -> Trajectory:
    return trajectory(settings.run.name, NUMBER, source, **changes)


@pytest.mark.slow
def test_programs_are_run_and_judged_and_audited(make_settings: MakeSettings) -> None:
    settings = printing(make_settings, auditor={"share": 1.0, "repeat_share": 1.0, "repeats": 2})
    attempts = {
        "right": program(settings, RIGHT),
        "wrong": program(settings, "print(-1)", sample=1),
        "endless": program(settings, "while True: pass", group="g-endless"),
        "crash": program(settings, "import os; os.abort()", group="g-crash"),
        "none": program(settings, "", group="g-none"),
        "sum": trajectory(settings.run.name, SUM, load_domain("arithmetic").oracle(SUM), group="g-sum"),
    }

    async def body() -> None:
        async with bench(settings) as it, verifying(settings, methods=methods):
            for message in attempts.values():
                await it.attempt(message)
            rewards = await it.rewards(len(attempts))
            found = {title: rewards[message.trajectory_id] for title, message in attempts.items()}
            assert {title: (r.verdict, r.reward) for title, r in found.items()} == {
                "right": ("passed", 1.0),
                "wrong": ("failed", 0.0),
                "endless": ("failed", 0.0),
                "crash": ("failed", 0.0),
                "none": ("failed", 0.0),
                "sum": ("passed", 1.0),
            }
            assert found["endless"].wall_seconds >= WALL_S
            assert found["endless"].cpu_seconds > 0.1 > found["sum"].cpu_seconds, (
                "of the jail, not of who asked for it"
            )
            assert all(reward.flags == () for reward in found.values())
            beats = await it.read(
                it.names.workers, lambda seen: seen[-1:] and seen[-1].message.gauges.get("repeated") == 6
            )
            gauges = beats[-1].message.gauges
            # A second check that a busy machine kept from ending is a fault, and says nothing: not asserted here.
            assert (gauges["audited"], gauges.get("disagreed", 0)) == (6, 0)

    asyncio.run(body())


def test_functions_are_judged_by_the_method_of_this_build_and_cheats_are_flagged(
    make_settings: MakeSettings,
) -> None:
    settings = printing(make_settings, domains=[{"name": CODING}])
    domain = Coding()
    instance = domain.instance(4)
    cheats = {miss.answer for miss in domain.exploits(instance)}
    answers = [domain.oracle(instance), "", *(miss.answer for miss in domain.near_misses(instance)), *cheats]
    attempts = [
        trajectory(settings.run.name, instance, text, group=f"g{n}") for n, text in enumerate(answers)
    ]

    async def body() -> None:
        async with bench(settings) as it, verifying(settings):
            for message in attempts:
                await it.attempt(message)
            rewards = await it.rewards(len(attempts))
            for message in attempts:
                reward, answer = rewards[message.trajectory_id], message.final_answer
                wanted = "passed" if answer == answers[0] else "failed"
                assert (reward.verdict, reward.reward) == (wanted, float(wanted == "passed")), answer
                assert bool(reward.flags) == (answer in cheats), (answer, reward.flags)

    asyncio.run(body())


def test_a_deadline_is_handed_down_and_what_comes_too_late_is_a_dead_letter_without_a_number(
    make_settings: MakeSettings,
) -> None:
    settings = printing(make_settings)
    now = int(time.time() * 1000)
    late_sum = trajectory(settings.run.name, SUM, "0", deadline_ms=now - 60_000, group="g-late-sum")
    late = program(settings, RIGHT, group="g-late", deadline_ms=now - 60_000)
    near = program(settings, RIGHT, group="g-near", deadline_ms=now + 20_000)
    by_header = program(settings, RIGHT, group="g-header")
    ample = program(settings, RIGHT, group="g-ample", deadline_ms=now + 600_000)

    async def body() -> None:
        async with bench(settings) as it, verifying(settings, methods=methods):
            for message in (late_sum, late, ample, near):
                await it.attempt(message)
            await it.attempt(by_header, headers=Headers(deadline_ms=now - 60_000))
            rewards = await it.rewards(3)
            assert rewards[ample.trajectory_id].verdict == rewards[near.trajectory_id].verdict == "passed"
            assert rewards[late_sum.trajectory_id].verdict == "failed", (
                "a typed answer costs nothing to judge late"
            )
            dead = await it.read(it.names.dead("verifier"), lambda seen: len(seen) >= 2)
            assert {d.message.trajectory_id for d in dead} == {late.trajectory_id, by_header.trajectory_id}
            assert {header(d.record.headers, "error.type") for d in dead} == {"CheckTooLate"}
            after = await it.read(it.names.rewards, lambda seen: len(seen) >= 3)
            assert len(after) == 3, "a word after the deadline would fill the slots of the next attempt"

    asyncio.run(body())


async def records(it: Bench, message: Trajectory, times: int, before: int = 0) -> list[Reward]:
    """The rewards of `times` deliveries of one trajectory."""
    for _ in range(times):
        await it.attempt(message)
    found = await it.read(it.names.rewards, lambda seen: len(seen) >= before + times, 800.0)
    return [d.message for d in found[before:]]


@contextlib.contextmanager
def load(processes: int) -> Iterator[None]:
    """So many processes that want a whole CPU each."""
    busy = [
        subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"], start_new_session=True)
        for _ in range(processes)
    ]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
        for process in busy:
            process.wait()


@pytest.mark.slow
@pytest.mark.timeout(900)  # sixteen processes beside it, and whatever else the machine does
@pytest.mark.parametrize(
    ("instance", "answer"),
    [
        (SUM, "12"),
        (NUMBER, f"# patient\n{RIGHT}"),
        (NUMBER, "# patient\nimport sys\nprint('x', file=sys.stderr)\nprint(1 / 0)"),
    ],
    ids=["typed answer", "program that passes", "program that fails"],
)
def test_one_trajectory_gives_one_record_a_hundred_times_also_under_load(
    make_settings: MakeSettings, instance: Instance, answer: str
) -> None:
    settings = printing(make_settings, auditor={"share": 0.1, "repeat_share": 0.1})
    message = trajectory(settings.run.name, instance, answer)

    async def body() -> None:
        async with bench(settings) as it, verifying(settings, methods=methods):
            quiet = await records(it, message, 80)
            with load(8 * 2):
                loaded = await records(it, message, 20, before=80)
            assert len({reward.stable_bytes() for reward in quiet + loaded}) == 1
            assert len({reward.wall_seconds for reward in quiet + loaded}) > 1, "they are checks, not copies"
            assert {reward.verdict for reward in quiet} <= {"passed", "failed"}

    asyncio.run(body())
