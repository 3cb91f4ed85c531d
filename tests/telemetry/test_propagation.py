"""Trace context through record headers: replaced, never appended; unreadable is none, never an error."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import get_current_span, use_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from shared.contracts import Headers
from shared.telemetry.propagation import extract, inject, link_of, span_context_of, traceparent_of

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_inject_replaces_what_was_there():
    span = TracerProvider().get_tracer("test").start_span("attempt")
    before = Headers(run_id="r", traceparent=TRACEPARENT, tracestate="old=1")
    with use_span(span):
        after = inject(before)
    assert after.traceparent == traceparent_of(span) != TRACEPARENT
    assert after.tracestate == ""
    assert after.run_id == "r"
    assert [name for name, _ in after.to_kafka()].count("traceparent") == 1


def test_without_a_span_a_forwarded_record_keeps_its_trace():
    headers = Headers(traceparent=TRACEPARENT, tracestate="a=b")
    assert inject(headers) is headers


def test_a_child_made_from_headers_joins_the_trace():
    tracer = TracerProvider().get_tracer("test")
    parent = tracer.start_span("schedule")
    with use_span(parent):
        sent = Headers.from_kafka(inject(Headers()).to_kafka())
    child = tracer.start_span("attempt", context=extract(sent))
    assert child.get_span_context().trace_id == parent.get_span_context().trace_id
    assert child.parent is not None and child.parent.span_id == parent.get_span_context().span_id


def test_the_same_header_as_the_reference_propagator():
    span = TracerProvider().get_tracer("test").start_span("s")
    carrier: dict[str, str] = {}
    with use_span(span):
        TraceContextTextMapPropagator().inject(carrier)
    assert carrier["traceparent"] == traceparent_of(span)


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "00",
        "00-" + "0" * 32 + "-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-" + "0" * 16 + "-01",
        "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        TRACEPARENT + "-more",
        TRACEPARENT.upper(),
        TRACEPARENT[:-1],
        "\\xff\\xfe",
    ],
)
def test_an_unreadable_context_is_none(bad: str):
    assert extract(Headers(traceparent=bad)) is None
    assert link_of(bad) is None


def test_a_later_version_of_the_header_is_read():
    context = span_context_of("01" + TRACEPARENT[2:] + "-what-is-to-come")
    assert context is not None and f"{context.trace_id:032x}" == TRACEPARENT[3:35]


def test_trace_state_travels():
    context = extract(Headers(traceparent=TRACEPARENT, tracestate="vendor=1,other=2"))
    assert context is not None
    with use_span(get_current_span(context)):
        assert inject(Headers()) == Headers(traceparent=TRACEPARENT, tracestate="vendor=1,other=2")


@given(st.text(max_size=80), st.text(max_size=80))
def test_no_header_text_raises(traceparent: str, tracestate: str):
    extract(Headers(traceparent=traceparent, tracestate=tracestate))
    extract(Headers(traceparent=TRACEPARENT, tracestate=tracestate))


def test_importing_propagation_does_not_load_the_sdk():
    program = "import shared.telemetry.propagation, sys; sys.exit(any('opentelemetry.sdk' in m for m in sys.modules))"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
