"""Traces to any collector, by the standard OTEL_EXPORTER_OTLP_* variables (OTLP over HTTP, protobuf).

Invariant: a collector that is slow, down or refusing never blocks or ends a service. Spans wait in a bounded queue
that a thread empties; what does not fit is dropped and said by the SDK.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import Status

from shared.errors import ConfigError
from shared.telemetry.text import printable

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_QUEUE = 16_384
_DELAY_MS = 1000.0


def endpoint_given(environment: Mapping[str, str]) -> bool:
    return any(environment.get(name, "").strip() for name in ENDPOINTS)


def otlp_processor(environment: Mapping[str, str]) -> BatchSpanProcessor:
    """The processor that exports to the collector of `environment`.

    Raises `ConfigError` for a protocol other than `http/protobuf`, the only one this distribution installs.
    """
    for name in _PROTOCOLS:
        protocol = environment.get(name, "").strip()
        if protocol and protocol != "http/protobuf":
            raise ConfigError(
                f"{name} is {protocol!r}: traces go out as 'http/protobuf' only; set that and the collector's HTTP port (4318)"
            )
        if protocol:
            break
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return BatchSpanProcessor(
        _EncodableSpans(OTLPSpanExporter()),
        max_queue_size=None if "OTEL_BSP_MAX_QUEUE_SIZE" in environment else _QUEUE,
        schedule_delay_millis=None if "OTEL_BSP_SCHEDULE_DELAY" in environment else _DELAY_MS,
    )


class _EncodableSpans(SpanExporter):
    """One attribute that is not UTF-8 would lose its whole batch: such spans are rebuilt with escapes."""

    def __init__(self, inner: SpanExporter) -> None:
        self._inner = inner

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return self._inner.export([span if _is_clean(span) else _cleaned(span) for span in spans])

    def shutdown(self) -> None:
        self._inner.shutdown()

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        return self._inner.force_flush(timeout_millis)


def _is_clean(span: ReadableSpan) -> bool:
    values = [*(span.attributes or {}).values(), span.name, span.status.description or ""]
    for event in span.events:
        values.extend((event.attributes or {}).values())
    return all(_encodes(value) for value in values)


def _encodes(value: object) -> bool:
    if isinstance(value, str):
        return printable(value) is value
    return not isinstance(value, Sequence) or all(_encodes(item) for item in value)


def _cleaned(span: ReadableSpan) -> ReadableSpan:
    """Events are left behind: they hold free text only (a traceback), which the log has as well."""
    attributes = {
        key: printable(value)
        if isinstance(value, str)
        else tuple(printable(item) if isinstance(item, str) else item for item in value)
        if isinstance(value, Sequence)
        else value
        for key, value in (span.attributes or {}).items()
    }
    return ReadableSpan(
        name=printable(span.name),
        context=span.context,
        parent=span.parent,
        resource=span.resource,
        attributes=attributes,
        links=span.links,
        kind=span.kind,
        status=Status(span.status.status_code, printable(span.status.description or "") or None),
        start_time=span.start_time,
        end_time=span.end_time,
        instrumentation_scope=span.instrumentation_scope,
    )
