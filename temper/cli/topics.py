"""`temper topics`: what the run's topics must be, and whether they are.

Invariant: `check` ends with 0 only if every topic is as the manifest wants it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shared.bus.admin import TopicState

app = typer.Typer(help="Plan, create and check the run's topics.", no_args_is_help=True)

ConfigOption = Annotated[Path, typer.Option("--config", help="The run's TOML file.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]
NOT_AS_WANTED = 1


@app.command()
def plan(config: ConfigOption, as_json: JsonOption = False) -> None:
    """Show every topic and what `apply` would do. Changes nothing."""
    from shared.bus import admin
    from shared.settings import load_settings

    _show(admin.plan(load_settings(config)), as_json)


@app.command()
def apply(config: ConfigOption, as_json: JsonOption = False) -> None:
    """Create missing topics and mend their configuration. Never deletes, never changes partition counts."""
    from shared.bus import admin
    from shared.settings import load_settings

    done = admin.apply(load_settings(config))
    if as_json:
        _show(done, as_json)
        return
    created = sum(state.action == "create" for state in done)
    configured = sum(state.action == "configure" for state in done)
    typer.echo(f"{len(done)} topics: {created} created, {configured} configured, the rest as they were")


@app.command()
def check(config: ConfigOption, as_json: JsonOption = False) -> None:
    """Exit with 1 and the list when a topic is missing or differs."""
    from shared.bus import admin
    from shared.settings import load_settings

    wrong = admin.check(load_settings(config))
    if as_json or wrong:
        _show(wrong, as_json)
    else:
        typer.echo("all topics are as they must be")
    if wrong:
        raise typer.Exit(NOT_AS_WANTED)


def _show(states: Sequence[TopicState], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps([_plain(state) for state in states]))
        return
    from rich.table import Table

    from temper.cli.screen import screen

    table = Table("topic", "partitions", "key", "written by", "read by", "action")
    for state in states:
        spec = state.spec
        table.add_row(
            spec.name,
            str(spec.partitions),
            spec.key,
            ", ".join(spec.written_by),
            ", ".join(spec.read_by),
            _action(state),
        )
    screen().print(table)


def _action(state: TopicState) -> str:
    if state.action == "configure":
        changes = (f"{key}: {found or 'unset'} → {wanted}" for key, (found, wanted) in state.differs.items())
        return "configure " + "; ".join(changes)
    return {"create": "create", "none": "–"}[state.action]


def _plain(state: TopicState) -> dict[str, Any]:
    return {
        "topic": state.name,
        "action": state.action,
        "partitions": state.spec.partitions,
        "partitions_found": state.partitions,
        "replication_factor": state.spec.replication_factor,
        "key": state.spec.key,
        "written_by": list(state.spec.written_by),
        "read_by": list(state.spec.read_by),
        "config": state.spec.config,
        "differs": {key: {"is": found, "wanted": wanted} for key, (found, wanted) in state.differs.items()},
    }
