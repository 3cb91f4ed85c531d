"""Spans of one process: made here, written by `file_exporter` and, where a collector is named, by `otlp`.

Invariant: tracing changes nothing about the work it watches: no exporter blocks it, an error inside a span is marked
on the span and goes on to the caller unchanged. There is no global provider: a process may hold several `Tracing`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Literal

from opentelemetry.context import Context
from opentelemetry.trace import (
    Link,
    NoOpTracerProvider,
    Span,
    SpanKind,
    StatusCode,
    Tracer,
    set_span_in_context,
    use_span,
)
from opentelemetry.util.types import AttributeValue

from shared.contracts.headers import Headers
from shared.settings import Settings
from shared.telemetry.propagation import extract, link_of, traceparent_of
from shared.telemetry.text import printable

Parent = Headers | Span | str | None
"""Headers of the record, a span of this process, a traceparent, or None: the current span."""

Kind = SpanKind | Literal["internal", "producer", "consumer", "client", "server"]
"""A span's kind, by name so that callers need not import OpenTelemetry."""


class Tracing:
    """The tracer of one service process. Make it with `Tracing.start` or `Tracing.off`."""

    def __init__(self, tracer: Tracer, *, provider: object = None, run_id: str = "") -> None:
        self.tracer = tracer
        self._provider = provider
        self._run_id = run_id

    @classmethod
    def start(
        cls,
        settings: Settings,
        service: str,
        worker_id: str,
        *,
        environment: Mapping[str, str] | None = None,
    ) -> Tracing:
        """Exporters by `telemetry.traces` and the OTEL_* variables.

        `file` (default) writes `<run folder>/traces/<service>-<worker>.jsonl`; a named OTLP endpoint is served as
        well; `otlp` writes the files too and exports to the standard port where no endpoint is named; `none` writes
        no file. OTEL_SDK_DISABLED=true turns all of it off.

        Raises `StorageError` where the file cannot be opened, `ConfigError` for an OTLP protocol not installed.
        """
        from shared.telemetry.otlp import endpoint_given, otlp_processor

        variables = os.environ if environment is None else environment
        to_file = settings.telemetry.traces != "none"
        to_collector = settings.telemetry.traces == "otlp" or endpoint_given(variables)
        disabled = variables.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
        if disabled or not (to_file or to_collector):
            return cls.off()
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider

        resource = Resource.create(
            {
                "service.name": f"temper-{service}",
                "service.instance.id": worker_id,
                "temper.run_id": settings.run.name,
            }
        )
        provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        if to_file:
            from shared.telemetry.file_exporter import FileSpanProcessor, trace_file_name

            path = settings.run_folder / "traces" / trace_file_name(service, worker_id)
            provider.add_span_processor(FileSpanProcessor(path, service=service, worker_id=worker_id))
        if to_collector:
            provider.add_span_processor(otlp_processor(variables))
        return cls(provider.get_tracer("temper"), provider=provider, run_id=settings.run.name)

    @classmethod
    def off(cls) -> Tracing:
        """Spans that are never recorded; records keep the trace context they came with."""
        return cls(NoOpTracerProvider().get_tracer("temper"))

    def begin(
        self,
        name: str,
        *,
        parent: Parent = None,
        links: Iterable[Link | str] = (),
        kind: Kind = SpanKind.INTERNAL,
        attributes: Mapping[str, AttributeValue] | None = None,
        root: bool = False,
    ) -> Span:
        """A started span that the caller ends. It is not current: `use` makes it so.

        `links` are links or traceparents (unreadable ones are left out). `root` starts a new trace whatever is
        current. A parent that carries no readable context starts a new trace as well.
        """
        found = [link if isinstance(link, Link) else link_of(link) for link in links]
        return self.tracer.start_span(
            name,
            context=Context() if root else _context_of(parent),
            kind=kind if isinstance(kind, SpanKind) else SpanKind[kind.upper()],
            links=[link for link in found if link is not None],
            attributes={"temper.run_id": self._run_id, **(attributes or {})},
        )

    @contextmanager
    def span(
        self,
        name: str,
        *,
        parent: Parent = None,
        links: Iterable[Link | str] = (),
        kind: Kind = SpanKind.INTERNAL,
        attributes: Mapping[str, AttributeValue] | None = None,
        root: bool = False,
    ) -> Iterator[Span]:
        """As `begin`, current inside the block and ended with it. An error marks the span and goes on."""
        span = self.begin(name, parent=parent, links=links, kind=kind, attributes=attributes, root=root)
        try:
            with self.use(span):
                yield span
        finally:
            span.end()

    @contextmanager
    def use(self, span: Span) -> Iterator[Span]:
        """`span` is current inside the block and stays open after it."""
        with use_span(span, end_on_exit=False, record_exception=False, set_status_on_exception=False):
            try:
                yield span
            except BaseException as error:
                span.set_attribute("error.type", type(error).__name__)
                span.set_status(StatusCode.ERROR, printable(str(error)) or type(error).__name__)
                raise

    @staticmethod
    def traceparent(span: Span) -> str:
        """W3C header of `span`; empty where it is not traced."""
        return traceparent_of(span)

    def shutdown(self, timeout_s: float = 5.0) -> None:
        """Write what is left; after `timeout_s` a collector that does not answer is left alone."""
        from opentelemetry.sdk.trace import TracerProvider

        if isinstance(self._provider, TracerProvider):
            closing = threading.Thread(target=self._provider.shutdown, name="trace-shutdown", daemon=True)
            closing.start()
            closing.join(timeout_s)


def _context_of(parent: Parent) -> Context | None:
    """None means the current context, as the tracer has it."""
    if parent is None:
        return None
    if isinstance(parent, Span):
        return set_span_in_context(parent, Context())
    if isinstance(parent, str):
        parent = Headers(traceparent=parent)
    return extract(parent) or Context()
