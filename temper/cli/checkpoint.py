"""`temper checkpoint`: the checkpoints of a run: list, show, verify, export.

Invariant: nothing of the run is changed. `verify` ends with 0 only if every byte that is there is what the manifests
say, and the newest checkpoint is whole.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from services.learner.checkpoint_folders import CheckpointFolders
    from shared.settings import Settings
    from temper.checkpoints.rows import CheckpointRow
    from temper.checkpoints.verify import Verified

app = typer.Typer(help="The checkpoints of a run: list, show, verify, export.", no_args_is_help=True)

RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="The run's folder, runs/<name>.")]
WhichArgument = Annotated[
    str,
    typer.Argument(
        metavar="RUN[@WHICH]", help="runs/<name>@<step>, @best or @last; the last where nothing is said."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]
DAMAGED = 1


@app.command("list")
def list_checkpoints(
    run: RunArgument,
    everything: Annotated[bool, typer.Option("--all", help="Also those whose weights were pruned.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show the checkpoints whose weights are there, and what was measured of them."""
    import json
    from dataclasses import asdict

    from temper.checkpoints.rows import rows

    settings, folders = _of_run(run)
    found = rows(folders, settings)
    shown = [row for row in found if row.held or everything]
    if as_json:
        typer.echo(json.dumps([asdict(row) for row in shown]))
        return
    _show_rows(shown, len(found) - len(shown), folders.incomplete())


@app.command()
def show(policy: WhichArgument, as_json: JsonOption = False) -> None:
    """Show what one checkpoint holds: its files, where the run was, what it has read."""
    import json

    from temper.checkpoints.about import about

    settings, folders, step = _one(policy)
    found = about(folders, step, settings)
    if as_json:
        typer.echo(json.dumps(found))
    else:
        _show_one(found)


@app.command()
def verify(policy: WhichArgument, as_json: JsonOption = False) -> None:
    """Hash every file of every checkpoint, or of the one that is named; exit with 1 and the list of what is wrong."""
    import json
    from dataclasses import asdict

    from temper.checkpoints.verify import verify as verify_all

    if Path(policy).is_dir():
        _, folders = _of_run(Path(policy))
        step = None
    else:
        _, folders, step = _one(policy)
    results: list[Verified] = []
    for one in verify_all(folders, step):
        results.append(one)
        if not as_json:
            _show_verified(one)
    if as_json:
        typer.echo(json.dumps([asdict(one) for one in results]))
    if any(one.problems for one in results):
        raise typer.Exit(DAMAGED)


@app.command()
def export(
    policy: WhichArgument,
    folder: Annotated[Path, typer.Argument(help="Where to; it must not exist.")],
) -> None:
    """Write a Hugging Face folder: configuration, tokenizer, safetensors; any tool that reads those reads it."""
    from temper.checkpoints.export import export as write

    settings, folders, step = _one(policy)
    made = write(folders, step, settings.run.name, Path(settings.model.path), folder)
    typer.echo(
        f"{made}: {settings.run.name}@{step}, with configuration and tokenizer of {settings.model.path}"
    )


def _of_run(run: Path) -> tuple[Settings, CheckpointFolders]:
    from services.learner.checkpoint_folders import CheckpointFolders
    from shared.storage import ObjectStore
    from temper.audit.place import run_settings

    settings = run_settings(run)
    return settings, CheckpointFolders(ObjectStore(settings.storage_uri), settings.run.name)


def _one(policy: str) -> tuple[Settings, CheckpointFolders, int]:
    from services.learner.checkpoint_folders import CheckpointFolders
    from shared.errors import ConfigError
    from shared.storage import ObjectStore
    from temper.policies import FolderPolicy, find_policy

    found = find_policy(policy)
    if isinstance(found, FolderPolicy):
        raise ConfigError(
            f"{policy} is a Hugging Face folder and no run: give runs/<name>, or runs/<name>@<step>"
        )
    store = ObjectStore(found.settings.storage_uri)
    return found.settings, CheckpointFolders(store, found.settings.run.name), found.step


def _show_rows(rows: list[CheckpointRow], hidden: int, incomplete: list[int]) -> None:
    from rich import box
    from rich.table import Table

    from temper.cli.screen import screen

    table = Table(box=box.SIMPLE)
    for column in ("step", "stage", "made", "size", "held-out", ""):
        table.add_column(column, justify="left" if column in ("stage", "") else "right")
    rated = [(row.pass_rate, row.step) for row in rows if row.held and row.pass_rate is not None]
    best = max(rated)[1] if rated else -1
    for number, row in enumerate(rows):
        marks = ["newest"] * (number == len(rows) - 1) + ["best"] * (row.step == best)
        table.add_row(
            str(row.step), row.stage, _time(row.created_ms), _bytes(row.size_bytes),
            "" if row.pass_rate is None else f"{row.pass_rate:.1%}",
            ", ".join(marks) if row.held else "pruned",
        )  # fmt: skip
    screen().print(table)
    if hidden:
        were = "was" if hidden == 1 else "were"
        typer.echo(f"{hidden} more {were} pruned: state is there, weights are not (--all shows all)")
    for step in incomplete:
        typer.echo(
            f"step {step} is not complete: it is being written, or a crash left it and the next start removes it"
        )


def _show_one(found: dict[str, Any]) -> None:
    from rich import box
    from rich.table import Table

    from temper.cli.screen import screen

    console = screen()
    facts = Table(box=box.SIMPLE, show_header=False)
    for name in (
        "run",
        "step",
        "stage",
        "pass_rate",
        "lineage",
        "kl_coefficient",
        "reference",
        "steps",
        "resolved",
    ):
        value = found[name]
        facts.add_row(name.replace("_", " "), "" if value is None else str(value))
    facts.add_row("made", _time(found["created_ms"]))
    files = Table(box=box.SIMPLE)
    for column in ("file", "size", "sha256", ""):
        files.add_column(column, justify="right" if column == "size" else "left")
    for file in found["files"]:
        files.add_row(
            file["name"], _bytes(file["size_bytes"]), file["sha256"][:16], "" if file["there"] else "pruned"
        )
    read = Table(box=box.SIMPLE)
    for column in ("topic", "partition", "read to", "still needed"):
        read.add_column(column, justify="left" if column == "topic" else "right")
    for shard in found["offsets"]:
        read.add_row(shard["topic"], str(shard["partition"]), str(shard["next"]), str(shard["needed"]))
    for table in (facts, files, read):
        console.print(table)


def _show_verified(one: Verified) -> None:
    from shared.plain_errors import counted

    if one.problems:
        for problem in one.problems:
            typer.echo(f"step {one.step}: {problem}")
    else:
        pruned = ", weights pruned" * one.pruned
        files = counted(one.files, "file")
        typer.echo(f"step {one.step}: {files}, {_bytes(one.size_bytes)}, as written{pruned}")


def _time(milliseconds: int) -> str:
    from datetime import datetime

    return datetime.fromtimestamp(milliseconds / 1000).strftime("%Y-%m-%d %H:%M:%S")


def _bytes(size: int) -> str:
    for unit, scale in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= scale:
            return f"{size / scale:.1f} {unit}"
    return f"{size} B"
