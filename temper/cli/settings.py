"""`temper settings`: every key that a run's TOML may have.

Invariant: what is printed is read from the models that check a run; nothing else is written down about them.
"""

from __future__ import annotations

import json
from typing import Annotated

import typer


def settings(
    section: Annotated[
        str,
        typer.Argument(metavar="[SECTION]", help="Keys below this one alone: bus, stages, rollout.episode."),
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")] = False,
) -> None:
    """Show every key of a run's TOML: its kind, bounds, default and meaning. The environment overrides each of them:
    bus.drain_s is TEMPER_BUS__DRAIN_S."""
    from dataclasses import asdict

    from shared.errors import ConfigError
    from shared.plain_errors import nearest
    from shared.settings import Settings
    from temper.reference.keys import keys

    every = list(keys(Settings))
    found = [key for key in every if f"{_plain(key.path)}.".startswith(f"{section}." if section else "")]
    if not found:
        known = {_plain(key.path).rpartition(".")[0] for key in every} - {""}
        raise ConfigError(
            f"there is no section {section!r}{nearest(section, known)}; there are: {', '.join(sorted(known))}"
        )
    if as_json:
        typer.echo(json.dumps([asdict(key) for key in found]))
        return
    from rich.table import Table

    from temper.cli.screen import screen

    table = Table("key", "kind", "default", "meaning", show_lines=False)
    for key in found:
        table.add_row(key.path, key.kind, key.default or "must be given", key.meaning)
    screen().print(table)


def _plain(path: str) -> str:
    return path.replace("[]", "")
