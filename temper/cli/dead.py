"""`temper dead`: what nobody could handle, why, and sending it again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from shared.bus.dead_book import DeadLetter
    from shared.settings import Settings

app = typer.Typer(
    help="List, show and replay dead letters. The broker of a finished run of `temper up` is started for it.",
    no_args_is_help=True,
)

ConfigOption = Annotated[Path, typer.Option("--config", help="The run's TOML file.")]
ServiceOption = Annotated[str, typer.Option("--service", help="Only this service's letters.")]
IdOption = Annotated[
    str, typer.Option("--id", help="topic/partition/offset of the record that failed, or of its letter.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]
_SHOWN_BYTES = 4000


@app.command("list")
def list_letters(
    config: ConfigOption,
    service: ServiceOption = "",
    wanted: IdOption = "",
    as_json: JsonOption = False,
) -> None:
    """One line a letter, oldest first."""
    with _connected(config) as settings:
        letters = _letters(settings, service, wanted)
    if as_json:
        typer.echo(json.dumps([letter.plain() for letter in letters]))
        return
    if not letters:
        typer.echo("no dead letters")
        return
    from rich.table import Table

    from temper.cli.screen import screen

    table = Table("origin", "service", "error", "deliveries", "died", "replayed")
    for letter in letters:
        error = f"{letter.error_type}: {letter.error_message}"
        table.add_row(
            letter.origin,
            letter.service,
            error if len(error) <= 160 else error[:159] + "…",
            letter.deliveries,
            _when(letter.record.timestamp_ms),
            "yes" if letter.replayed else "",
        )
    screen().print(table)


@app.command()
def show(
    config: ConfigOption,
    wanted: Annotated[str, typer.Option("--id", help="As in `temper dead list`.")],
    service: ServiceOption = "",
    as_json: JsonOption = False,
) -> None:
    """One letter: headers and body as they were. Exit code 1 when there is none."""
    with _connected(config) as settings:
        letters = _letters(settings, service, wanted)
    if not letters:
        typer.echo(f"no dead letter {wanted}; see `temper dead list`", err=True)
        raise typer.Exit(1)
    if as_json:
        typer.echo(json.dumps([{**letter.plain(), "body": _body(letter, None)} for letter in letters]))
        return
    for letter in letters:
        for name, value in letter.plain().items():
            if name != "headers":
                typer.echo(f"{name}: {value}")
        typer.echo("headers:")
        for name, value in letter.plain()["headers"].items():
            typer.echo(f"  {name}: {value}")
        typer.echo(f"body:\n{_body(letter, _SHOWN_BYTES)}")


@app.command()
def replay(
    config: ConfigOption,
    service: ServiceOption = "",
    wanted: IdOption = "",
    everything: Annotated[bool, typer.Option("--all", help="Every letter not replayed yet.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Send letters to the topics they came from, as first deliveries. Exit code 1 when one was not sent."""
    from shared.errors import ConfigError

    if not wanted and not everything:
        raise ConfigError("say which letters: --id topic/partition/offset, or --all")
    with _connected(config) as settings:
        letters = [letter for letter in _letters(settings, service, wanted) if wanted or not letter.replayed]
        outcomes = _send(settings, letters)
    if as_json:
        typer.echo(json.dumps([{"origin": letter.origin, "outcome": text} for letter, text in outcomes]))
    else:
        for letter, text in outcomes:
            typer.echo(f"{letter.origin}: {text}")
        if not outcomes:
            typer.echo("no dead letters to replay")
    if (wanted and not outcomes) or any(not text.startswith("sent") for _, text in outcomes):
        raise typer.Exit(1)


def _connected(config: Path) -> AbstractContextManager[Settings]:
    from shared.settings import load_settings
    from temper.audit.place import connected

    return connected(load_settings(config))


def _letters(settings: Settings, service: str, wanted: str) -> list[DeadLetter]:
    from shared.bus.dead_book import find_letters

    return find_letters(settings, service, wanted)


def _send(settings: Settings, letters: list[DeadLetter]) -> list[tuple[DeadLetter, str]]:
    import asyncio

    from shared.bus import dead_book
    from shared.bus.producer import TypedProducer

    async def sending() -> list[tuple[DeadLetter, str]]:
        producer = TypedProducer(settings, "temper-replay")
        try:
            return await dead_book.replay(producer, letters)
        finally:
            await producer.close()

    return asyncio.run(sending())


def _body(letter: DeadLetter, limit: int | None) -> str:
    body = letter.record.value or b""
    text = body[:limit].decode("utf-8", "backslashreplace")
    return text if limit is None or len(body) <= limit else f"{text}… ({len(body):,} bytes)"


def _when(milliseconds: int) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
