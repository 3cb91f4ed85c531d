"""Reads back what `file_exporter` wrote.

Invariant: a span that was started is in the log, ended or not; a torn or foreign line is counted and skipped, and
never costs the lines around it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class SpanLink:
    trace_id: str
    span_id: str


@dataclass(frozen=True, slots=True)
class SpanRecord:
    """One span. `end_ns` is None where it never ended: its process still works on it, or was killed."""

    trace_id: str
    span_id: str
    parent_span_id: str
    """Empty for a root."""
    name: str
    service: str
    worker: str
    start_ns: int
    end_ns: int | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)
    links: tuple[SpanLink, ...] = ()
    status: str = "unset"
    status_message: str = ""

    def text(self, name: str) -> str:
        """Attribute `name` as text; empty where there is none."""
        value = self.attributes.get(name)
        return "" if value is None else str(value)


@dataclass(frozen=True, slots=True)
class SpanLog:
    spans: tuple[SpanRecord, ...]
    skipped_lines: int = 0


def read_spans(folder: Path) -> SpanLog:
    """Every span under `folder` (`runs/<name>/traces`), by start time; an absent folder holds none."""
    lines = (line for path in sorted(folder.glob("*.jsonl")) for line in _lines_of(path))
    return fold_lines(lines)


def fold_lines(lines: Iterable[bytes]) -> SpanLog:
    """The spans of start and end lines in any order; of two lines about one span the end line holds."""
    found: dict[tuple[str, str], SpanRecord] = {}
    skipped = 0
    for line in lines:
        if not line.strip():
            continue
        span = _parse(line)
        if span is None:
            skipped += 1
            continue
        key = (span.trace_id, span.span_id)
        if span.end_ns is not None or key not in found:
            found[key] = span
    ordered = sorted(found.values(), key=lambda span: (span.start_ns, span.span_id))
    return SpanLog(tuple(ordered), skipped)


def _lines_of(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        yield from file


def _parse(line: bytes) -> SpanRecord | None:
    try:
        body = json.loads(line)
        if body.get("kind") not in ("start", "end"):
            return None
        return SpanRecord(
            trace_id=str(body["trace_id"]),
            span_id=str(body["span_id"]),
            parent_span_id=str(body["parent_span_id"]),
            name=str(body["name"]),
            service=str(body["service"]),
            worker=str(body["worker"]),
            start_ns=int(body["start_ns"]),
            end_ns=int(body["end_ns"]) if body["kind"] == "end" else None,
            attributes=dict(body.get("attributes", {})),
            links=tuple(SpanLink(link["trace_id"], link["span_id"]) for link in body.get("links", ())),
            status=str(body.get("status", "unset")),
            status_message=str(body.get("status_message", "")),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
