"""An audit as text and as JSON.

Invariant: both forms hold every finding; nothing is shortened to look better.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from shared.telemetry.text import one_line
from temper.audit.check import Audit
from temper.audit.slots import PENDING


def show(audit: Audit, console: Console) -> None:
    state = "ended" if audit.ended else "not ended"
    console.print(
        Text(f"run {audit.run_id}", style="bold").append(f"  {state}, {audit.slots:,} slots", "dim")
    )
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column()
    for fate, count in audit.fates.items():
        table.add_row(fate, f"{count:,}", _group_of(fate))
    table.add_section()
    table.add_row("tokens sampled", f"{sum(audit.tokens.values()):,}", _by_fate(audit.tokens))
    table.add_section()
    table.add_row("steps", f"{audit.steps:,}", _told_again(audit))
    table.add_row("policies", f"{audit.policies:,}", "announced and still on record")
    if audit.traces is None:
        table.add_row("traces", "–", "not checked: telemetry.traces is 'none'")
    else:
        table.add_row("traces", f"{audit.traces:,}", _open(audit))
    console.print(table)
    if not audit.findings:
        console.print(Text("OK", style="bold green").append(": every promise holds", "default"))
        return
    console.print(Text(f"{len(audit.findings):,} findings", style="bold red"))
    for finding in audit.findings:
        line = Text(finding.rule, style="red").append(
            f"  {one_line(finding.subject)}: {one_line(finding.text)}", "default"
        )
        console.print(line, soft_wrap=True)


def as_json(audit: Audit) -> dict[str, Any]:
    return {
        "run_id": audit.run_id,
        "ok": not audit.findings,
        "ended": audit.ended,
        "slots": audit.slots,
        "fates": dict(audit.fates),
        "pending": audit.pending,
        "tokens": dict(audit.tokens),
        "steps": audit.steps,
        "repeated_steps": audit.repeated_steps,
        "policies": audit.policies,
        "traces": audit.traces,
        "open_spans": audit.open_spans,
        "findings": [{"rule": f.rule, "subject": f.subject, "text": f.text} for f in audit.findings],
    }


def _group_of(fate: str) -> str:
    if fate in PENDING:
        return "pending"
    return "" if fate in ("trained", "dead-lettered") else "dropped"


def _by_fate(tokens: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {fate}" for fate, count in tokens.items() if count)


def _told_again(audit: Audit) -> str:
    again = audit.repeated_steps
    return f"and {again:,} told again or replaced after a restart" if again else ""


def _open(audit: Audit) -> str:
    return f"{audit.open_spans:,} spans never ended: at work, or killed" if audit.open_spans else ""
