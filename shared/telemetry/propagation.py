"""Trace context in record headers, by W3C Trace Context (https://www.w3.org/TR/trace-context/).

Invariant: forwarding replaces the context and never appends; a context that cannot be read is no context, so a
bad header costs a link in a trace and never a record. Only the OpenTelemetry API is imported, not its SDK.
"""

from __future__ import annotations

import re

from opentelemetry.context import Context
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    TraceFlags,
    TraceState,
    get_current_span,
    set_span_in_context,
)

from shared.contracts.headers import Headers

_TRACEPARENT = re.compile(
    r"(?P<version>[0-9a-f]{2})-(?P<trace>[0-9a-f]{32})-(?P<span>[0-9a-f]{16})-(?P<flags>[0-9a-f]{2})(?P<rest>-.*)?"
)
_SAMPLED_ONLY = TraceFlags.SAMPLED
_LONGEST_TRACESTATE = 512
"""Bytes that the specification asks everyone to carry; a longer one is left behind rather than cut."""


def inject(headers: Headers) -> Headers:
    """`headers` with the context of the current span.

    Without a current span they come back as they were: a retry or a replay keeps the trace it belongs to.
    """
    span = get_current_span()
    context = span.get_span_context()
    if not context.is_valid:
        return headers
    return headers.with_(traceparent=_format(context), tracestate=context.trace_state.to_header())


def extract(headers: Headers) -> Context | None:
    """The context that `headers` carry, as the parent of a new span; None where they carry none."""
    context = span_context_of(headers.traceparent, headers.tracestate)
    return None if context is None else set_span_in_context(NonRecordingSpan(context), Context())


def traceparent_of(span: Span) -> str:
    """`00-<trace>-<span>-<flags>`; an empty string for a span that is not traced."""
    context = span.get_span_context()
    return _format(context) if context.is_valid else ""


def link_of(traceparent: str) -> Link | None:
    """A link to the span that `traceparent` names; None for an empty or unreadable one."""
    context = span_context_of(traceparent)
    return None if context is None else Link(context)


def span_context_of(traceparent: str, tracestate: str = "") -> SpanContext | None:
    """The remote span that a W3C header names; None where it names none."""
    match = _TRACEPARENT.fullmatch(traceparent.strip())
    if match is None or match["version"] == "ff" or (match["version"] == "00" and match["rest"]):
        return None
    context = SpanContext(
        trace_id=int(match["trace"], 16),
        span_id=int(match["span"], 16),
        is_remote=True,
        trace_flags=TraceFlags(int(match["flags"], 16) & _SAMPLED_ONLY),
        trace_state=_trace_state(tracestate),
    )
    return context if context.is_valid else None


def _trace_state(tracestate: str) -> TraceState:
    if not tracestate or len(tracestate) > _LONGEST_TRACESTATE:
        return TraceState()
    return TraceState.from_header([tracestate])


def _format(context: SpanContext) -> str:
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"
