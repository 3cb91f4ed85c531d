"""`temper trace ID`: the tree of one task, with durations and where time went."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def trace(
    wanted: Annotated[str, typer.Argument(metavar="ID", help="A group, task, trajectory or trace id.")],
    run: Annotated[Path | None, typer.Option("--run", help="The run's folder; the newest in runs/.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")] = False,
) -> None:
    """Show what became of one task, from scheduling to the optimizer step."""
    import json

    from shared.telemetry.span_log import read_spans
    from temper.cli.screen import screen
    from temper.trace.find import find
    from temper.trace.folder import trace_folder
    from temper.trace.render import as_json as to_json
    from temper.trace.render import show

    folder = trace_folder(run)
    if run is None:
        typer.echo(f"run: {folder.parent} (the newest; name another with --run)", err=True)
    spans = read_spans(folder).spans
    found = find(spans, wanted)
    by_id = {span.span_id: span for span in spans}
    if as_json:
        typer.echo(json.dumps(to_json(found, by_id), ensure_ascii=True))
    else:
        show(found, by_id, screen())
