"""The batch's bound and the order of admission."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from services.rollout.engines.admission import Admission


@dataclass(eq=False)
class Request:
    number: int
    tokens: int


@given(
    st.integers(1, 8),
    st.lists(st.integers(1, 50), max_size=40),
    st.lists(st.integers(0, 7), min_size=200, max_size=200),
)
def test_bound_order_and_no_starvation(max_rows: int, sizes: list[int], leaving: list[int]) -> None:
    admission: Admission[Request] = Admission(max_rows, max_tokens=100)
    for number, size in enumerate(sizes):
        admission.submit(Request(number, size))
    running: list[Request] = []
    order: list[int] = []
    for leave in leaving:
        taken = admission.take(len(running), max((r.tokens for r in running), default=0))
        running.extend(taken)
        order.extend(request.number for request in taken)
        assert len(running) <= max_rows
        assert len(running) * max((r.tokens for r in running), default=0) <= 100
        if running:
            running.pop(leave % len(running))
    assert order == list(range(len(sizes)))


def test_discard_forgets_only_what_it_is_given() -> None:
    admission: Admission[Request] = Admission(8, 100)
    requests = [Request(i, 1) for i in range(3)]
    for request in requests:
        admission.submit(request)
    admission.discard([requests[1]])
    assert [request.number for request in admission.take(0, 0)] == [0, 2]
