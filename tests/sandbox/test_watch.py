"""When a run is ended, with a clock in our hands."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

import pytest

from shared.sandbox import watch as watching
from shared.sandbox.cgroups.base import Counters
from shared.sandbox.faults import SandboxFault
from shared.sandbox.limits import Limits
from shared.sandbox.outcome import Outcome
from shared.sandbox.watch import Watch

LIMITS = Limits(wall_s=100, cpu_s=5)


def why(
    counters: Callable[[float], Counters], *, limits: Limits = LIMITS, act: str = "", step: float = 1.0
) -> object:
    """The clock makes one step at each look."""
    now = [0.0]

    def count() -> Counters:
        now[0] += step
        return counters(now[0])

    async def run() -> object:
        watch = Watch(limits, count, lambda: now[0])
        if act:
            asyncio.get_running_loop().call_later(0.001, getattr(watch, act))
        return await watch.wait(), now[0]

    return asyncio.run(run())


def test_limits_in_the_order_in_which_they_are_met() -> None:
    assert why(lambda now: Counters(cpu_s=now)) == (Outcome.CPU_LIMIT, 5.0)
    assert why(lambda now: Counters(memory_kills=int(now >= 3), cpu_s=now)) == (Outcome.MEMORY_LIMIT, 3.0)
    assert why(lambda now: Counters(), step=50) == (Outcome.WALL_LIMIT, 100.0)


@pytest.mark.parametrize(
    ("act", "outcome"), [("ended", None), ("stop", Outcome.KILLED), ("flooded", Outcome.OUTPUT_LIMIT)]
)
def test_wishes_and_ends_do_not_wait_for_the_next_look(act: str, outcome: Outcome | None) -> None:
    assert why(lambda now: Counters(), act=act) == (outcome, 1.0)


def test_looks_grow_apart_and_never_past_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """In virtual time: how many seconds pass from one look to the next, of a run that computes on every core."""
    monkeypatch.setattr(watching, "_CORES", 4)
    now, pauses = [0.0], list[float]()

    async def pause(awaited: Coroutine[object, object, bool], seconds: float) -> None:
        awaited.close()
        pauses.append(seconds)
        now[0] += seconds
        raise TimeoutError

    async def run() -> object:
        watch = Watch(LIMITS, lambda: Counters(cpu_s=4 * now[0]), lambda: now[0], longest_look_s=0.3)
        return await watch.wait()

    monkeypatch.setattr(watching.asyncio, "wait_for", pause)
    assert asyncio.run(run()) is Outcome.CPU_LIMIT
    assert pauses[:4] == [0.1, 0.2, 0.3, 0.3]
    assert LIMITS.cpu_s <= 4 * now[0] <= LIMITS.cpu_s + 4 * 0.05, "over by one short look at most"


def test_an_end_counts_more_than_a_limit_met_at_the_same_time() -> None:
    async def run() -> object:
        watch = Watch(LIMITS, lambda: Counters(cpu_s=99), lambda: 0.0)
        watch.ended()
        watch.stop()
        return await watch.wait()

    assert asyncio.run(run()) is None


def test_the_time_of_a_run_ends_with_it_and_not_when_we_see_it() -> None:
    async def run(at: float | None) -> object:
        now = [5.0]
        watch = Watch(LIMITS, Counters, lambda: now[0])
        now[0] = 150.0
        watch.ended(at)
        return await watch.wait(), watch.seconds

    # Before our start of the clock: it ended before the keeper's answer was read.
    assert [asyncio.run(run(at)) for at in (99.0, 3.0, None)] == [(None, 94.0), (None, 0.0), (None, 145.0)]


def test_counters_that_are_gone_are_a_fault() -> None:
    def gone(now: float) -> Counters:
        raise SandboxFault("the group is gone")

    with pytest.raises(SandboxFault):
        why(gone)
