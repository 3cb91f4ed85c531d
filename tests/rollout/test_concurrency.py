"""Limits of tasks at work: they find the engine's room, from above and from below, and share it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.rollout.concurrency import Concurrency, Marks, demand
from services.rollout.engines.base import EngineLoad


def load(kv_use: float, running: int = 8, waiting: int = 0, preempted: int = 0) -> EngineLoad:
    return EngineLoad(
        max_batch=64, running=running, waiting=waiting, version=1, sampled_tokens=0, decode_steps=0,
        kv_use=kv_use, preempted=preempted,
    )  # fmt: skip


class Fleet:
    """An engine with room for `room` rows; each task of a workload is that many requests, and there are always more."""

    def __init__(self, room: int, requests: dict[str, int], ceiling: int) -> None:
        self.room, self.requests = room, requests
        self.limits = Concurrency(requests, ceiling)
        self.now = 0.0

    def second(self) -> None:
        running = dict(self.limits.limits)
        rows = sum(running[name] * self.requests[name] for name in running)
        at_work = min(rows, self.room)
        self.now += 1.0
        self.limits.observe(load(at_work / self.room, at_work, rows - at_work), running, self.now)


@given(
    looks=st.lists(
        st.tuples(
            st.floats(0, 2), st.integers(0, 100), st.integers(0, 100), st.integers(0, 1),
            st.dictionaries(st.sampled_from("ab"), st.integers(0, 40)),
            st.floats(0, 10),
        ),
        max_size=60,
    ),
    ceiling=st.integers(1, 32),
)  # fmt: skip
def test_whatever_is_seen_limits_stay_in_bounds_and_cuts_have_their_distance(
    looks: list[tuple[float, int, int, int, dict[str, int], float]], ceiling: int
) -> None:
    machine, marks = Concurrency("ab", ceiling), Marks()
    now, preempted, cut_at = 0.0, 0, -1e9
    for use, rows, waiting, more, running, passed in looks:
        now, preempted = now + passed, preempted + more
        before, cuts = dict(machine.limits), machine.cuts
        grew = machine.observe(load(use, rows, waiting, preempted), running, now)
        assert all(marks.floor <= limit <= ceiling for limit in machine.limits.values())
        change = {name: machine.limits[name] - before[name] for name in before}
        assert all(by <= 1 for by in change.values())
        assert grew == any(by > 0 for by in change.values())
        assert all(running.get(name, 0) >= before[name] for name, by in change.items() if by > 0)
        if machine.cuts > cuts:
            assert now - cut_at >= marks.patience_s
            cut_at = now
        elif any(by < 0 for by in change.values()):
            pytest.fail("a limit shrank without a cut")


@given(room=st.integers(16, 256), ceiling=st.integers(1, 64))
def test_one_workload_finds_the_room(room: int, ceiling: int) -> None:
    fleet = Fleet(room, {"one": 4}, ceiling)
    for _ in range(200):
        fleet.second()
    rows = fleet.limits.limits["one"] * 4
    assert rows <= 1.25 * room + 4
    assert rows >= min(0.6 * room - 4, ceiling * 4)


def test_two_workloads_come_to_the_same_share() -> None:
    fleet = Fleet(64, {"first": 4, "second": 4}, 64)
    fleet.limits._limits["first"] = 2
    for _ in range(400):
        fleet.second()
    first, second = fleet.limits.limits["first"], fleet.limits.limits["second"]
    assert abs(first - second) <= 4
    assert 40 <= 4 * (first + second) <= 84


def test_a_preemption_cuts_whatever_the_use() -> None:
    machine = Concurrency(["one"], 16)
    machine.observe(load(0.5, preempted=1), {"one": 12}, 0.0)
    assert machine.limits["one"] == 6
    machine.observe(load(0.9, preempted=1), {"one": 6}, 10.0)
    assert machine.limits["one"] == 6


def test_an_idle_workload_pays_nothing_for_another() -> None:
    machine = Concurrency(["busy", "idle"], 16)
    machine.observe(load(1.0, waiting=60), {"busy": 16}, 0.0)
    assert machine.limits == {"busy": 8, "idle": 16}
    assert machine.full({"busy": 8, "idle": 3}) == {"busy"}


def test_demand_counts_what_waits_at_the_size_of_what_runs() -> None:
    assert demand(load(0.5, running=8, waiting=8)) == 1.0
    assert demand(load(0.0, running=0, waiting=3)) == 1.0
    assert demand(load(0.0, running=0)) == 0.0
