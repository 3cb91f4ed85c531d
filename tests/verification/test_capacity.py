"""Admission to the sandboxes, as properties of the state machine: never over budget, nobody starved, nothing idle."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.errors import VerificationFault
from shared.verification.capacity import Capacity, Demand

BUDGET = Demand(4, 1000)
DEMANDS = st.builds(Demand, st.sampled_from([0.5, 1, 2, 4]), st.sampled_from([10, 200, 500, 1000]))
ACTIONS = st.lists(st.one_of(DEMANDS, st.integers(0, 30)), max_size=120)
"""A demand asks; a number lets the one at that place (of those that run or wait) leave."""


class Crowd:
    """Drives a capacity and keeps books of its own."""

    def __init__(self, max_passed: int) -> None:
        self.capacity = Capacity(BUDGET, max_passed)
        self.demands: dict[int, Demand] = {}
        self.running: list[int] = []
        self.waiting: list[int] = []
        self.passed: dict[int, int] = {}

    def ask(self, demand: Demand) -> None:
        ticket = len(self.demands)
        self.demands[ticket] = demand
        self.waiting.append(ticket)
        self.passed[ticket] = 0
        self.take(self.capacity.ask(ticket, demand))

    def leave(self, place: int) -> None:
        here = self.running + self.waiting
        if here:
            ticket = here[place % len(here)]
            (self.running if ticket in self.running else self.waiting).remove(ticket)
            self.take(self.capacity.leave(ticket))

    def take(self, admitted: list[int]) -> None:
        for ticket in admitted:
            for older in self.waiting:
                if older < ticket:
                    self.passed[older] += 1
            self.waiting.remove(ticket)
            self.running.append(ticket)

    def used(self) -> tuple[float, float]:
        held = [self.demands[ticket] for ticket in self.running]
        return sum(d.cpus for d in held), sum(d.memory_mb for d in held)


@given(ACTIONS, st.integers(0, 5))
@settings(max_examples=300)
def test_the_budget_holds_and_nobody_is_passed_more_often_than_allowed(
    actions: list[Demand | int], most: int
) -> None:
    crowd = Crowd(most)
    for action in actions:
        crowd.leave(action) if isinstance(action, int) else crowd.ask(action)
        cpus, memory_mb = crowd.used()
        assert cpus <= BUDGET.cpus and memory_mb <= BUDGET.memory_mb
        assert crowd.capacity.used == (cpus, memory_mb)
        assert (crowd.capacity.running, crowd.capacity.waiting) == (len(crowd.running), len(crowd.waiting))
        assert all(crowd.passed[ticket] <= most for ticket in crowd.waiting + crowd.running)
        if crowd.waiting:
            oldest = crowd.demands[crowd.waiting[0]]
            fits = cpus + oldest.cpus <= BUDGET.cpus and memory_mb + oldest.memory_mb <= BUDGET.memory_mb
            assert not fits, "the oldest fits and waits all the same"


@given(st.lists(DEMANDS, max_size=60), st.integers(0, 5))
@settings(max_examples=150)
def test_everybody_is_admitted_once_those_before_have_left(demands: list[Demand], most: int) -> None:
    crowd = Crowd(most)
    for demand in demands:
        crowd.ask(demand)
    served = 0
    while crowd.running:
        crowd.leave(0)
        served += 1
    assert served == len(demands) and not crowd.waiting


def test_small_ones_fill_the_gap_beside_a_big_one_until_it_has_waited_long_enough() -> None:
    capacity = Capacity(Demand(2, 100), max_passed=2)
    assert capacity.ask(0, Demand(1, 60)) == [0]
    assert capacity.ask(1, Demand(2, 100)) == []
    assert capacity.ask(2, Demand(0.5, 10)) == [2]
    assert capacity.ask(3, Demand(0.5, 10)) == [3]
    assert capacity.ask(4, Demand(0.1, 1)) == [], "the big one was passed twice: nobody passes it again"
    assert capacity.leave(0) == [] and capacity.leave(2) == []
    assert capacity.leave(3) == [1]
    assert capacity.leave(1) == [4]


def test_what_never_fits_is_refused_with_both_numbers() -> None:
    with pytest.raises(VerificationFault, match=r"needs 8 CPUs .* have 4.*sandbox_cpus"):
        Capacity(BUDGET).ask(0, Demand(8, 1))
    with pytest.raises(VerificationFault, match=r"needs 2000 MiB of memory .* have 1000"):
        Capacity(BUDGET).ask(0, Demand(1, 2000))


@pytest.mark.parametrize(("cpus", "memory_mb"), [(0, 1), (1, -1), (float("nan"), 1), (1, float("inf"))])
def test_a_demand_is_positive_and_finite(cpus: float, memory_mb: float) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        Demand(cpus, memory_mb)
