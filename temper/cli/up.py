"""`temper up run.toml`: the laptop deployment."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

INTERRUPTED = 130


def up(
    config: Annotated[Path, typer.Argument(help="The run's TOML file.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON on stdout.")] = False,
) -> None:
    """Run everything here: broker, scheduler, rollouts, verifiers, learner. The same command resumes."""
    from shared.settings import load_settings
    from temper.up.run import run_settings

    settings = load_settings(config)
    complete = run_settings(settings)
    folder = settings.run_folder
    if not complete:
        typer.echo(f"interrupted; run `temper up {config}` again to go on", err=True)
        raise typer.Exit(INTERRUPTED)
    if as_json:
        from temper.report.collect import read_summary

        typer.echo(read_summary(folder / "summary.json").model_dump_json())
    else:
        typer.echo(
            f"see more: temper audit {folder}; temper trace GROUP --run {folder}; curve: {folder / 'reward.png'}"
        )
