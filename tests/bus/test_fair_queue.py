"""Deficit round robin: shares by weight, order kept, nobody starves."""

from __future__ import annotations

from collections import Counter

import hypothesis.strategies as st
from hypothesis import given

from shared.bus.fair_queue import FairQueue

WEIGHTS = {"high": 8, "normal": 3, "low": 1}


def test_full_classes_are_served_by_weight() -> None:
    queue: FairQueue[str] = FairQueue(WEIGHTS)
    for name in WEIGHTS:
        for _ in range(1000):
            queue.push(name, name, now=0.0)
    served = Counter(queue.pop(now=0.0) for _ in range(12 * 50))
    assert served == {"high": 400, "normal": 150, "low": 50}


def test_an_idle_class_leaves_its_share_to_the_others_and_gathers_no_credit() -> None:
    queue: FairQueue[str] = FairQueue(WEIGHTS)
    for _ in range(100):
        queue.push("low", "low", now=0.0)
    assert [queue.pop(now=0.0) for _ in range(100)] == ["low"] * 100
    for _ in range(100):
        queue.push("low", "low", now=0.0)
        queue.push("high", "high", now=0.0)
    first = Counter(queue.pop(now=0.0) for _ in range(9))
    assert first["low"] <= 2, "a class must not be paid for turns it did not need"


def test_what_waited_too_long_is_served_within_its_floor() -> None:
    queue: FairQueue[str] = FairQueue({"high": 1_000_000, "low": 1}, aging_s=30.0, floor_every=4)
    queue.push("low", "old", now=0.0)
    for index in range(100):
        queue.push("high", f"new{index}", now=100.0)
    queue.pop(now=0.0)
    served = [queue.pop(now=100.0) for _ in range(4)]
    assert "old" in served


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("push"), st.sampled_from(sorted(WEIGHTS))),
            st.tuples(st.just("pop"), st.just("")),
        ),
        max_size=300,
    ),
    st.floats(0, 60),
)
def test_every_item_comes_once_and_in_the_order_of_its_class(
    steps: list[tuple[str, str]], tick: float
) -> None:
    queue: FairQueue[tuple[str, int]] = FairQueue(WEIGHTS)
    pushed: Counter[str] = Counter()
    popped: Counter[str] = Counter()
    now = 0.0
    for kind, name in [*steps, *[("pop", "")] * len(steps)]:
        now += tick
        if kind == "push":
            queue.push(name, (name, pushed[name]), now)
            pushed[name] += 1
            continue
        item = queue.pop(now)
        assert (item is None) == (pushed == popped)
        if item is not None:
            assert item[1] == popped[item[0]]
            popped[item[0]] += 1
        assert len(queue) == pushed.total() - popped.total()
    assert pushed == popped


@given(st.lists(st.integers(0, 20), max_size=50))
def test_removing_takes_exactly_the_unwanted(items: list[int]) -> None:
    queue: FairQueue[int] = FairQueue({"only": 1})
    for item in items:
        queue.push("only", item, now=0.0)
    assert queue.remove(lambda item: item % 2 == 0) == [item for item in items if item % 2 == 0]
    rest = [item for item in items if item % 2]
    assert [queue.pop(now=0.0) for _ in rest] == rest
    assert queue.pop(now=0.0) is None
