"""Spans to a tree with times.

Invariant: every span of a trace is in its tree once, also where a parent is missing or spans point at each other in a
circle; a time that is not known (a span that never ended) is None and never a guess.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from shared.telemetry.span_log import SpanRecord

Interval = tuple[int, int]
"""[start, end) in ns since the epoch."""


@dataclass(slots=True)
class Node:
    span: SpanRecord
    children: list[Node] = field(default_factory=list)
    orphan: bool = False
    """Its parent is in no file of the run."""
    queued: Interval | None = None
    """Between the end of a parent in another process and this span's start: the record lay in a topic."""

    @property
    def duration_ns(self) -> int | None:
        return None if self.span.end_ns is None else max(0, self.span.end_ns - self.span.start_ns)

    @property
    def queued_ns(self) -> int | None:
        return None if self.queued is None else self.queued[1] - self.queued[0]

    @property
    def last_ns(self) -> int:
        """The last moment at which this span is known to have been open."""
        return self.span.start_ns if self.span.end_ns is None else max(self.span.start_ns, self.span.end_ns)

    def own(self) -> list[Interval]:
        """When this span was open and no child was."""
        gaps: list[Interval] = []
        at = self.span.start_ns
        for child in sorted(self.children, key=lambda node: node.span.start_ns):
            start, end = max(child.span.start_ns, self.span.start_ns), min(child.last_ns, self.last_ns)
            if start > at:
                gaps.append((at, min(start, self.last_ns)))
            at = max(at, end)
        gaps.append((at, self.last_ns))
        return [(start, end) for start, end in gaps if end > start]

    @property
    def self_ns(self) -> int | None:
        return None if self.span.end_ns is None else sum(end - start for start, end in self.own())


def forest(spans: Sequence[SpanRecord]) -> list[Node]:
    """The roots of one trace, by start time. A span whose parent is missing is a root, marked `orphan`."""
    nodes = {span.span_id: Node(span) for span in spans}
    roots = []
    for node in sorted(nodes.values(), key=lambda n: (n.span.start_ns, n.span.span_id)):
        parent = nodes.get(node.span.parent_span_id)
        if parent is None or _circular(node, nodes):
            node.orphan = bool(node.span.parent_span_id)
            roots.append(node)
            continue
        parent.children.append(node)
        node.queued = _queue(parent, node)
    return roots


def walk(roots: Sequence[Node]) -> list[Node]:
    """Every node, parents before children."""
    out: list[Node] = []
    waiting = list(reversed(roots))
    while waiting:
        node = waiting.pop()
        out.append(node)
        waiting.extend(reversed(node.children))
    return out


def _queue(parent: Node, child: Node) -> Interval | None:
    same = (parent.span.service, parent.span.worker) == (child.span.service, child.span.worker)
    if same or parent.span.end_ns is None or parent.last_ns > child.span.start_ns:
        return None
    return parent.last_ns, child.span.start_ns


def _circular(node: Node, nodes: dict[str, Node]) -> bool:
    """Whether going up from `node` comes back to it. Every node of a circle is then a root."""
    seen = {node.span.span_id}
    at = nodes.get(node.span.parent_span_id)
    while at is not None and at.span.span_id not in seen:
        seen.add(at.span.span_id)
        at = nodes.get(at.span.parent_span_id)
    return at is not None and at.span.span_id == node.span.span_id
