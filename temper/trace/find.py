"""Which spans an id means.

Invariant: an id finds a trace whichever id of the task it is (trace, group, task, trajectory), whole or by a prefix
that means one thing only; an id that finds nothing is an error that names the nearest ones.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from shared.errors import TemperError
from shared.telemetry.span_log import SpanRecord

ATTRIBUTES = ("temper.group_id", "temper.task", "temper.trajectory_id")
_SHORTEST_PREFIX = 4


class UnknownIdError(TemperError):
    """No trace has this id, or several do."""


@dataclass(frozen=True, slots=True)
class Found:
    """What an id means: its whole traces, or one trajectory's branch of them."""

    wanted: str
    traces: tuple[tuple[SpanRecord, ...], ...]
    """Each trace's spans by start time; traces by their first span."""


def find(spans: Sequence[SpanRecord], wanted: str) -> Found:
    """Raises `UnknownIdError` with the nearest ids."""
    name = _resolve(spans, wanted)
    hits = [span for span in spans if name in _ids(span)]
    trace_ids = dict.fromkeys(span.trace_id for span in hits)
    traces = []
    for trace_id in trace_ids:
        members = [span for span in spans if span.trace_id == trace_id]
        if all(span.text("temper.trajectory_id") == name for span in hits):
            members = _branch(members, {span.span_id for span in hits})
        traces.append(tuple(members))
    return Found(name, tuple(traces))


def _resolve(spans: Iterable[SpanRecord], wanted: str) -> str:
    known = {name for span in spans for name in _ids(span)}
    if wanted in known:
        return wanted
    starting = sorted(name for name in known if name.startswith(wanted))
    if len(starting) == 1 and len(wanted) >= _SHORTEST_PREFIX:
        return starting[0]
    if not known:
        raise UnknownIdError(
            f"id {wanted!r} is not known: the run has no trace files; was it run with telemetry.traces = 'none'?"
        )
    close = starting[:3] or difflib.get_close_matches(wanted, sorted(known), n=3, cutoff=0.0)
    said = "could be any of several ids" if starting else "is in no trace of this run"
    raise UnknownIdError(f"id {wanted!r} {said}; nearest: {', '.join(close)}")


def _ids(span: SpanRecord) -> set[str]:
    return {span.trace_id} | {text for name in ATTRIBUTES if (text := span.text(name))}


def _branch(members: Sequence[SpanRecord], hits: set[str]) -> list[SpanRecord]:
    """The hits, everything above them and everything below them."""
    parents = {span.span_id: span.parent_span_id for span in members}
    above: set[str] = set()
    for hit in hits:
        step = hit
        while step in parents and step not in above:
            above.add(step)
            step = parents[step]
    return [span for span in members if span.span_id in above or _descends(span.span_id, parents, hits)]


def _descends(span_id: str, parents: dict[str, str], hits: set[str]) -> bool:
    seen: set[str] = set()
    while span_id in parents and span_id not in seen:
        if span_id in hits:
            return True
        seen.add(span_id)
        span_id = parents[span_id]
    return False
