"""One trace per task, connected.

Invariant checked: every span's parent is known; every trace of a task starts at its `schedule` span; every trained
trajectory's trace leads to a `train` span, and that one to the `step`. Spans that a kill left open are no finding:
their start is on record, which is all that a child needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from shared.telemetry.propagation import span_context_of
from shared.telemetry.span_log import SpanRecord
from temper.audit.facts import RunFacts
from temper.audit.finding import Finding, slot_name
from temper.audit.slots import SlotBook

INNER = frozenset({"attempt", "sample", "verify", "train"})
"""Names of the spans that always have a parent: one of them at the root lost its record's context."""


@dataclass(frozen=True, slots=True)
class TraceIndex:
    spans: Sequence[SpanRecord]
    ids: frozenset[tuple[str, str]]
    """(trace id, span id)."""
    steps: frozenset[tuple[str, str]]
    trained: dict[tuple[str, str], list[SpanRecord]] = field(default_factory=dict)
    """(trace id, trajectory id) → `train` spans."""

    @classmethod
    def of(cls, spans: Sequence[SpanRecord]) -> TraceIndex:
        trained: dict[tuple[str, str], list[SpanRecord]] = {}
        for span in spans:
            if span.name == "train":
                trained.setdefault((span.trace_id, span.text("temper.trajectory_id")), []).append(span)
        return cls(
            spans,
            frozenset((span.trace_id, span.span_id) for span in spans),
            frozenset((span.trace_id, span.span_id) for span in spans if span.name == "step"),
            trained,
        )


def check_traces(facts: RunFacts, book: SlotBook) -> Iterator[Finding]:
    """Nothing where the run wrote no trace files."""
    if facts.spans is None:
        return
    index = TraceIndex.of(facts.spans)
    yield from _check_parents(index)
    yield from _check_tasks(facts, index)
    yield from _check_trained(book, index)


def _check_parents(index: TraceIndex) -> Iterator[Finding]:
    for span in index.spans:
        name = f"trace {span.trace_id}"
        if span.parent_span_id and (span.trace_id, span.parent_span_id) not in index.ids:
            text = f"the parent {span.parent_span_id} of {span.name} ({span.worker}) is in no file"
            yield Finding("trace not connected", name, text)
        elif not span.parent_span_id and span.name in INNER:
            text = f"{span.name} ({span.worker}) starts a trace: it lost the context of its record"
            yield Finding("trace not connected", name, text)


def _check_tasks(facts: RunFacts, index: TraceIndex) -> Iterator[Finding]:
    for task in facts.tasks:
        context = span_context_of(task.traceparent)
        name = f"task {task.group_id}/{task.attempt}"
        if context is None:
            yield Finding("trace not connected", name, "its record carries no trace context")
        elif context.trace_flags.sampled:
            key = (f"{context.trace_id:032x}", f"{context.span_id:016x}")
            if key not in index.ids:
                yield Finding("trace not connected", name, f"its schedule span {key[1]} is in no file")


def _check_trained(book: SlotBook, index: TraceIndex) -> Iterator[Finding]:
    for slot, bookings in sorted(book.bookings.items()):
        for booking in bookings:
            context = span_context_of(booking.traceparent)
            if booking.fate != "trained" or (context is not None and not context.trace_flags.sampled):
                continue
            name = slot_name(slot)
            if context is None:
                text = f"trained in step {booking.step.step} without a trace context"
                yield Finding("trace not connected", name, text)
                continue
            trains = index.trained.get((f"{context.trace_id:032x}", booking.trajectory_id), [])
            if not trains:
                text = (
                    f"trace {context.trace_id:032x} has no train span of trajectory {booking.trajectory_id}"
                )
                yield Finding("trace not connected", name, text)
            elif not any((li.trace_id, li.span_id) in index.steps for span in trains for li in span.links):
                yield Finding("trace not connected", name, "its train span links to no step span")
