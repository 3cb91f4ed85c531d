"""`temper domains held|hold|lift RUN`: which domains of a run are held back, why, and bringing them back.

Invariant: what is printed is the newest word of the control topic on each domain; a lift names a domain that is held.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from shared.contracts import Control
    from shared.settings import Settings

RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="The run's folder, runs/<name>.")]
NameArgument = Annotated[str, typer.Argument(metavar="DOMAIN", help="As `temper domains held` shows it.")]


def register(app: typer.Typer) -> None:
    app.command("held")(held)
    app.command("hold")(hold)
    app.command("lift")(lift)


def held(
    run: RunArgument, as_json: Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")] = False
) -> None:
    """The domains of a run that are held back, with reason and evidence."""
    from temper.audit.place import connected, run_settings

    with connected(run_settings(run)) as settings:
        found = _held(settings)
    if as_json:
        typer.echo(json.dumps({name: {"reason": c.reason, "evidence": c.body} for name, c in found.items()}))
    elif not found:
        typer.echo("no domain is held back")
    else:
        for name, control in found.items():
            typer.echo(f"{name}: {control.reason}")


def hold(
    run: RunArgument,
    domain: Annotated[str, typer.Argument(metavar="DOMAIN", help="As the run's configuration names it.")],
    reason: Annotated[str, typer.Option(help="Shown to everybody.")] = "held back by hand",
) -> None:
    """Schedule nothing more of a domain; its groups in flight are given up."""
    from shared.errors import ConfigError
    from shared.plain_errors import nearest
    from temper.audit.place import connected, run_settings
    from temper.cli.control_words import tell

    with connected(run_settings(run)) as settings:
        known = {declared.name for declared in settings.domains}
        if domain not in known:
            raise ConfigError(
                f"run {settings.run.name!r} has no domain {domain!r}; it has {', '.join(sorted(known))}"
                f"{nearest(domain, known)}"
            )
        tell(settings, "hold", reason, domain=domain)
    typer.echo(f"{domain} is held back")


def lift(run: RunArgument, domain: NameArgument) -> None:
    """Bring a domain back. What held it back is counted anew from here."""
    from shared.errors import ConfigError
    from temper.audit.place import connected, run_settings
    from temper.cli.control_words import tell

    with connected(run_settings(run)) as settings:
        found = _held(settings)
        if domain not in found:
            raise ConfigError(
                f"domain {domain!r} is not held back in run {settings.run.name!r}; held: {', '.join(found) or 'none'}"
            )
        tell(settings, "lift", "lifted by hand", domain=domain)
    typer.echo(f"{domain} is lifted")


def _held(settings: Settings) -> dict[str, Control]:
    from temper.cli.control_words import words

    newest = {word.domain: word for word in words(settings) if word.domain}
    return {name: word for name, word in newest.items() if word.kind == "hold"}
