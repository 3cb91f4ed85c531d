"""A found trace as text and as JSON.

Invariant: both forms say the same, and neither shows more than the spans hold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from shared.telemetry.span_log import SpanRecord
from shared.telemetry.text import one_line
from temper.trace.find import Found
from temper.trace.spent import Spent, spent, together
from temper.trace.tree import Node, forest, walk

FACTS = {
    "verdict": "", "reward": "reward ", "fate": "", "step": "step ", "policy_version": "version ", "tokens": "tokens ",
    "stop_reason": "stopped by ",
}  # fmt: skip
"""Attributes (`temper.<name>`) worth a place in a line, and what is written before them."""
_ID_SHOWN = 8
"""Characters of a trajectory id: enough to ask for it."""


def duration(ns: float | None) -> str:
    """`1.24 s`, `35.1 ms`; a dash where it is not known."""
    if ns is None:
        return "–"
    seconds = ns / 1e9
    if seconds >= 120:
        return f"{int(seconds // 60)} min {seconds % 60:02.0f} s"
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.1f} ms"


def show(found: Found, all_spans: Mapping[str, SpanRecord], console: Console) -> None:
    """Print every trace of `found`, and where the time went over all of them."""
    trees = [forest(spans) for spans in found.traces]
    for spans, roots in zip(found.traces, trees, strict=True):
        console.print(_heading(spans, roots))
        console.print(_table(roots, all_spans))
        console.print()
    console.print(_spent_table(together([spent(roots) for roots in trees])))


def as_json(found: Found, all_spans: Mapping[str, SpanRecord]) -> dict[str, Any]:
    trees = [forest(spans) for spans in found.traces]
    return {
        "id": found.wanted,
        "traces": [
            {
                "trace_id": roots[0].span.trace_id,
                "spans": len(walk(roots)),
                "spent": _spent_json(spent(roots)),
                "tree": [_node_json(node, all_spans) for node in roots],
            }
            for roots in trees
        ],
        "spent": _spent_json(together([spent(roots) for roots in trees])),
    }


def _heading(spans: Sequence[SpanRecord], roots: Sequence[Node]) -> Text:
    text = Text(f"trace {roots[0].span.trace_id}", style="bold")
    names = ("group_id", "task", "stage", "domain")
    said = {n: next((s.text(f"temper.{n}") for s in spans if s.text(f"temper.{n}")), "") for n in names}
    text.append(
        "".join(f"  {name.removesuffix('_id')} {value}" for name, value in said.items() if value), "dim"
    )
    return text


def _table(roots: Sequence[Node], all_spans: Mapping[str, SpanRecord]) -> RenderableType:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("span", no_wrap=True)
    table.add_column("worker", no_wrap=True)
    for name in ("at", "queued", "took", "self"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", overflow="fold")
    first = min(node.span.start_ns for node in walk(roots))
    for branch, node in _drawn(roots):
        style = "red" if node.orphan or node.span.status == "error" else ""
        table.add_row(
            Text(branch, "dim").append(one_line(node.span.name), style or "bold"),
            one_line(node.span.worker),
            f"+{duration(node.span.start_ns - first)}",
            duration(node.queued_ns) if node.queued is not None else "",
            duration(node.duration_ns) if node.span.end_ns is not None else Text("never ended", "yellow"),
            duration(node.self_ns) if node.children and node.span.end_ns is not None else "",
            Text(_facts(node, all_spans), style),
        )
    return Group(table)


def _drawn(roots: Sequence[Node]) -> list[tuple[str, Node]]:
    """Each node with the branch that leads to it."""
    out: list[tuple[str, Node]] = []
    waiting: list[tuple[str, str, Node]] = [("", "", root) for root in reversed(roots)]
    while waiting:
        head, below, node = waiting.pop()
        out.append((head, node))
        last = len(node.children) - 1
        for index, child in reversed(list(enumerate(node.children))):
            end = index == last
            waiting.append((below + ("└ " if end else "├ "), below + ("  " if end else "│ "), child))
    return out


def _facts(node: Node, all_spans: Mapping[str, SpanRecord]) -> str:
    span = node.span
    parts = [f"{before}{text}" for name, before in FACTS.items() if (text := span.text(f"temper.{name}"))]
    if span.name == "sample" and (trajectory := span.text("temper.trajectory_id")):
        parts.insert(0, trajectory[:_ID_SHOWN])
    if node.orphan:
        parts.insert(0, f"parent {span.parent_span_id} is in no file")
    if span.status == "error":
        parts.append(f"error {span.status_message}")
    for link in span.links:
        target = all_spans.get(link.span_id)
        parts.append(f"→ {_link_text(target)}" if target else f"→ span {link.span_id}")
    return one_line("  ".join(parts))


def _link_text(target: SpanRecord) -> str:
    name = target.text("temper.step") or target.text("temper.task") or target.span_id
    return f"{target.name} {name} (trace {target.trace_id[:8]}…)"


def _spent_table(total: Spent) -> RenderableType:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("where time went", no_wrap=True)
    table.add_column("time", justify="right", no_wrap=True)
    table.add_column("share", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for label, value in total.shares.items():
        part = value / total.wall_ns
        table.add_row(label, duration(value), f"{part:.0%}", Text("█" * round(part * 30), "cyan"))
    table.add_row("wall", duration(total.wall_ns), "100%" if total.wall_ns else "", "")
    return table


def _spent_json(total: Spent) -> dict[str, Any]:
    return {"wall_ms": total.wall_ns / 1e6, "ms": {k: round(v / 1e6, 3) for k, v in total.shares.items()}}


def _node_json(node: Node, all_spans: Mapping[str, SpanRecord]) -> dict[str, Any]:
    span = node.span
    milliseconds = {
        "queued_ms": node.queued_ns, "duration_ms": node.duration_ns, "self_ms": node.self_ns,
    }  # fmt: skip
    return {
        "name": span.name,
        "service": span.service,
        "worker": span.worker,
        "span_id": span.span_id,
        "start_ns": span.start_ns,
        **{name: None if ns is None else ns / 1e6 for name, ns in milliseconds.items()},
        "orphan": node.orphan,
        "status": span.status,
        "status_message": span.status_message,
        "attributes": dict(span.attributes),
        "links": [
            {"trace_id": link.trace_id, "span_id": link.span_id,
             "name": all_spans[link.span_id].name if link.span_id in all_spans else ""}
            for link in span.links
        ],
        "children": [_node_json(child, all_spans) for child in node.children],
    }  # fmt: skip
