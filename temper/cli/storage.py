"""`temper storage list|sweep`: large bodies and carried workspaces in a run's object store.

Invariant: `list` changes nothing; `sweep` removes what no record of the run's topics names and nothing else.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from temper.storage.sweep import Kept

app = typer.Typer(
    help="Bodies over bus.claim_check_bytes and workspaces of attempts that were handed back: what the records of a run "
    "left in its object store. Weights and checkpoints are not touched.",
    no_args_is_help=True,
)

ConfigOption = Annotated[Path, typer.Option("--config", help="The run's TOML file.")]
HoursOption = Annotated[
    float,
    typer.Option("--older-than", metavar="HOURS", help="Only what was written so long ago; at least 1."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]
AGE_H = 24.0
"""A record follows its object by as long as its broker can be away."""


@app.command("list")
def list_objects(config: ConfigOption, older_than: HoursOption = AGE_H, as_json: JsonOption = False) -> None:
    """Show how much there is, and how much of it no record names any more."""
    _show(_swept(config, older_than, remove=False), as_json, "may go")


@app.command()
def sweep(config: ConfigOption, older_than: HoursOption = AGE_H, as_json: JsonOption = False) -> None:
    """Remove what no record of the run names any more: since retention took the records, nobody can ask for it."""
    _show(_swept(config, older_than, remove=True), as_json, "removed")


def _swept(config: Path, older_than: float, *, remove: bool) -> Sequence[Kept]:
    from shared.errors import ConfigError
    from shared.settings import load_settings
    from shared.storage import ObjectStore
    from temper.audit.place import connected
    from temper.storage import sweep as sweeping
    from temper.storage.named import named

    if not older_than >= sweeping.LEAST_AGE_H:
        raise ConfigError(
            f"--older-than {older_than:g}: at least {sweeping.LEAST_AGE_H:g} hour, since a record follows its object"
        )
    with connected(load_settings(config)) as settings:
        store = ObjectStore(settings.storage_uri)
        wanted = named(settings, store, lambda count: typer.echo(f"{count:,} records read", err=True))
        found = sweeping.look(store, settings.run.name, wanted.digests, older_than)
        if not wanted.own and any(one.free for one in found):
            raise ConfigError(
                f"{settings.bus.bootstrap_servers} has no record of the run {settings.run.name!r} under "
                f"{settings.bus.namespace!r}, so nothing says what of {store.uri} is wanted: name the run's own broker "
                "(bus.bootstrap_servers) and bus.namespace; where its topics are gone for good, remove the folders yourself"
            )
        if remove:
            sweeping.remove(store, found)
    return found


def _show(found: Sequence[Kept], as_json: bool, what: str) -> None:
    if as_json:
        typer.echo(
            json.dumps([{
                "kind": one.kind, "objects": one.objects, "bytes": one.size_bytes,
                what.replace(" ", "_"): len(one.free), f"{what.replace(' ', '_')}_bytes": one.free_bytes,
            } for one in found])
        )  # fmt: skip
        return
    from rich.table import Table

    from temper.cli.screen import screen

    table = Table("kind", "objects", "MB", what, "MB")
    for one in found:
        table.add_row(
            one.kind, f"{one.objects:,}", _mb(one.size_bytes), f"{len(one.free):,}", _mb(one.free_bytes)
        )
    screen().print(table)


def _mb(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:,.1f}"
