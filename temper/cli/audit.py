"""`temper audit runs/<name>`: prove that a run kept its promises."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def audit(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run's folder, runs/<name>.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")] = False,
    digests: Annotated[
        bool, typer.Option("--digests/--no-digests", help="Hash the weights that are still there.")
    ] = True,
) -> None:
    """Read topics, steps, checkpoints and traces; exit with 1 and the list where a promise is broken."""
    import json

    from temper.audit.check import check
    from temper.audit.collect import collect
    from temper.audit.place import connected, run_settings
    from temper.audit.render import as_json as to_json
    from temper.audit.render import show
    from temper.cli.screen import screen

    with connected(run_settings(run)) as settings:
        found = check(collect(settings, digests=digests))
    if as_json:
        typer.echo(json.dumps(to_json(found)))
    else:
        show(found, screen())
    if found.findings:
        raise typer.Exit(1)
