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

    with connected(run_settings(run)) as settings:
        known = {declared.name for declared in settings.domains}
        if domain not in known:
            raise ConfigError(
                f"run {settings.run.name!r} has no domain {domain!r}; it has {', '.join(sorted(known))}"
                f"{nearest(domain, known)}"
            )
        _tell(settings, "hold", domain, reason)
    typer.echo(f"{domain} is held back")


def lift(run: RunArgument, domain: NameArgument) -> None:
    """Bring a domain back. What held it back is counted anew from here."""
    from shared.errors import ConfigError
    from temper.audit.place import connected, run_settings

    with connected(run_settings(run)) as settings:
        found = _held(settings)
        if domain not in found:
            raise ConfigError(
                f"domain {domain!r} is not held back in run {settings.run.name!r}; held: {', '.join(found) or 'none'}"
            )
        _tell(settings, "lift", domain, "lifted by hand")
    typer.echo(f"{domain} is lifted")


def _held(settings: Settings) -> dict[str, Control]:
    import asyncio

    from shared.bus.reader import LogReader
    from shared.bus.topics import TopicNames
    from shared.contracts import Control

    async def read() -> dict[str, Control]:
        newest: dict[str, Control] = {}
        reader = LogReader(settings, "scheduler", [TopicNames(settings.bus.namespace).control])
        try:
            async for delivery in reader.to_end():
                message = delivery.message
                if (
                    isinstance(message, Control)
                    and message.domain
                    and delivery.headers.run_id == settings.run.name
                ):
                    newest[message.domain] = message
        finally:
            await reader.close()
        return {name: control for name, control in newest.items() if control.kind == "hold"}

    return asyncio.run(read())


def _tell(settings: Settings, kind: str, domain: str, reason: str) -> None:
    import asyncio
    import time

    from shared.bus.producer import TypedProducer
    from shared.bus.topics import TopicNames
    from shared.contracts import Control

    control = Control.model_validate(
        {"run_id": settings.run.name, "kind": kind, "domain": domain, "reason": reason,
         "created_ms": int(time.time() * 1000)}
    )  # fmt: skip

    async def send() -> None:
        producer = TypedProducer(settings, "temper-holds")
        try:
            await producer.send(TopicNames(settings.bus.namespace).control, control)
        finally:
            await producer.close()

    asyncio.run(send())
