"""The small decisions: when to retry, what to pause, whether all is well."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from shared.bus.meter import BufferMeter
from shared.bus.pausing import BufferLimits, Load, topics_to_pause
from shared.bus.progress import Progress
from shared.bus.retry import RetryLater, RetryPolicy, due_ms

delays = st.lists(st.floats(0.1, 100), max_size=5, unique=True).map(lambda found: tuple(sorted(found)))


@given(delays, st.integers(1, 9))
def test_a_record_is_delivered_at_most_so_often_and_never_without_a_delay(
    delays_s: tuple[float, ...], most: int
) -> None:
    policy = RetryPolicy(delays_s, most)
    attempt = 1
    while (delay := policy.delay_after(attempt, ValueError())) is not None:
        assert delay in delays_s
        attempt += 1
    assert attempt == (most if delays_s else 1)


def test_delays_follow_the_attempts_and_the_last_one_repeats() -> None:
    policy = RetryPolicy((1.0, 10.0, 60.0), 6)
    assert [policy.delay_after(n, ValueError()) for n in range(1, 7)] == [1.0, 10.0, 60.0, 60.0, 60.0, None]


def test_a_handler_may_ask_for_a_longer_delay() -> None:
    policy = RetryPolicy((1.0, 10.0, 60.0), 4)
    assert policy.delay_after(1, RetryLater("busy", delay_s=5)) == 10.0
    assert policy.delay_after(1, RetryLater("busy", delay_s=500)) == 60.0
    assert policy.delay_after(1, RetryLater("busy")) == 1.0
    assert policy.delay_after(4, RetryLater("busy", delay_s=5)) is None


def test_the_delay_counts_from_the_brokers_clock() -> None:
    assert due_ms(1_700_000_000_000, 2.5) == 1_700_000_002_500


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 3000)), min_size=1, max_size=60))
def test_full_is_paused_and_paused_stays_until_half_is_gone(loads: list[tuple[int, int]]) -> None:
    limits = BufferLimits(records=20, bytes=2000)
    paused: frozenset[str] = frozenset()
    for records, size in loads:
        load = Load(records, size)
        before = "t" in paused
        paused = topics_to_pause({"t": load}, paused, limits)
        if limits.is_full(load):
            assert "t" in paused
        elif limits.is_low(load):
            assert "t" not in paused
        else:
            assert ("t" in paused) == before


def test_topics_are_paused_each_for_itself() -> None:
    limits = BufferLimits(records=10, bytes=100)
    loads = {"full": Load(10, 0), "heavy": Load(1, 100), "low": Load(1, 1)}
    assert topics_to_pause(loads, ["low"], limits) == {"full", "heavy"}


def test_the_meter_counts_what_is_between() -> None:
    meter = BufferMeter(["a", "b"])
    meter.handed("a", 3, 300)
    meter.taken("a", 100)
    assert meter.load("a") == Load(2, 200)
    assert meter.records() == 2


def test_progress_is_what_was_seen_of_the_broker() -> None:
    progress = Progress(started=100.0, limit_s=10.0)
    assert progress.problem(109.0) == ""
    assert "has not answered" in progress.problem(111.0)
    progress.broker_answered(111.0, fetchable_waiting=0)
    assert progress.problem(120.0) == ""
    progress.broker_answered(120.0, fetchable_waiting=5)
    progress.broker_answered(128.0, fetchable_waiting=5)
    progress.broker_answered(132.0, fetchable_waiting=5)
    assert "records wait" in progress.problem(132.0), "a broker that answers and delivers nothing is not well"
    progress.records_came(133.0)
    assert progress.problem(133.0) == ""
