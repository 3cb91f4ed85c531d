"""Where the time of a trace went.

Invariant: the shares add up to the wall time between the trace's first and last moment. Where several things happen
at once (a group's attempts run in parallel) each gets an equal part of the moment.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from temper.trace.tree import Node, walk

UNSEEN = "between spans"


@dataclass(frozen=True, slots=True)
class Spent:
    """`shares[label]` ns of `wall_ns`. Labels: a service at work, `queue → service`, or `between spans`."""

    wall_ns: int
    shares: dict[str, float]


def spent(roots: Sequence[Node]) -> Spent:
    nodes = walk(roots)
    if not nodes:
        return Spent(0, {})
    edges: list[tuple[int, int, str]] = []
    for node in nodes:
        for start, end in node.own():
            edges += [(start, 1, node.span.service), (end, -1, node.span.service)]
        if node.queued is not None and node.queued[1] > node.queued[0]:
            label = f"queue → {node.span.service}"
            edges += [(node.queued[0], 1, label), (node.queued[1], -1, label)]
    first = min(node.span.start_ns for node in nodes)
    last = max(node.last_ns for node in nodes)
    return Spent(last - first, _sweep(edges, first, last))


def _sweep(edges: list[tuple[int, int, str]], first: int, last: int) -> dict[str, float]:
    shares: dict[str, float] = defaultdict(float)
    active: Counter[str] = Counter()
    at = first
    for moment, change, label in [*sorted(edges), (last, 0, "")]:
        length, open_now = moment - at, active.total()
        if length > 0 and open_now == 0:
            shares[UNSEEN] += length
        elif length > 0:
            for name, count in active.items():
                shares[name] += length * count / open_now
        active[label] += change
        at = moment
    return dict(sorted(shares.items(), key=lambda item: -item[1]))


def together(parts: Sequence[Spent]) -> Spent:
    """The sum over several traces."""
    shares: dict[str, float] = {}
    for part in parts:
        for label, value in part.shares.items():
            shares[label] = shares.get(label, 0.0) + value
    ordered = dict(sorted(shares.items(), key=lambda item: -item[1]))
    return Spent(sum(part.wall_ns for part in parts), ordered)
