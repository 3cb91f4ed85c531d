"""`temper replay RUN`: train again on what a run recorded: the same data, the same or another objective.

Invariant: the run is only read. Under its own objective the exit code says whether every step came out to the bit.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from temper.replay.compare import ComparedStep
    from temper.replay.record import Replayed

NOT_THE_SAME = 1


def replay(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run's folder, runs/<name>.")],
    *,
    first: Annotated[
        int,
        typer.Option("--from", min=0, help="Step of the checkpoint to begin at (`temper checkpoint list`)."),
    ],
    steps: Annotated[int, typer.Option(min=0, help="How many; 0: all that were recorded.")] = 0,
    objective: Annotated[
        str, typer.Option(help="A preset, one of the run's own, or a TOML file of keys. Empty: as it was.")
    ] = "",
    changes: Annotated[
        list[str] | None, typer.Option("--set", help="key=value of the objective; may be given again.")
    ] = None,
    into: Annotated[
        str, typer.Option(help="Name of the new folder beside the run's; <run>-replay-<step> if empty.")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")] = False,
) -> None:
    """Retrain recorded steps and compare; exit with 1 where the same objective gives other bits."""
    import json
    from dataclasses import asdict

    from shared.errors import ConfigError
    from temper.audit.place import run_settings
    from temper.replay.plan import Wish
    from temper.replay.run import replay as make

    settings = run_settings(run)
    if into and into != Path(into).name:
        raise ConfigError(f"--into {into!r} is a path: give a name; the folder is made beside the run's")
    wish = Wish(first, steps, objective, tuple(changes or ()))
    folder = run.absolute().parent / (into or f"{settings.run.name}-replay-{first}")

    def tell(step: ComparedStep) -> None:
        typer.echo(f"step {step.step} {'as recorded' if step.same else 'differs'}", err=True)

    found = make(settings, wish, folder, tell)
    if as_json:
        document = {
            "folder": str(found.folder),
            "same": found.same,
            "steps": [asdict(one) for one in found.steps],
        }
        typer.echo(json.dumps(document))
    else:
        show_replay(found)
    if not found.anew and not found.same:
        raise typer.Exit(NOT_THE_SAME)


def show_replay(found: Replayed) -> None:
    from rich import box
    from rich.table import Table

    from shared.plain_errors import counted
    from temper.cli.screen import screen

    table = Table(title="recorded → replayed", title_justify="left", box=box.SIMPLE)
    for column in ("step", "stage", "loss", "KL", "reward", "gradient norm", ""):
        table.add_column(column, justify="left" if column in ("stage", "") else "right")
    for step in found.steps:
        before, after = step.recorded, step.replayed
        table.add_row(
            str(step.step), step.stage, _pair(before.loss, after.loss), _pair(before.kl, after.kl),
            _pair(before.reward, after.reward), _pair(before.gradient_norm, after.gradient_norm),
            "=" if step.same else ", ".join(step.differs),
        )  # fmt: skip
    screen().print(table)
    if found.same:
        typer.echo(f"{counted(len(found.steps), 'step')} came out to the last bit: {found.folder}")
        return
    odd = next(step for step in found.steps if not step.same)
    if found.anew:
        typer.echo(f"the same batches under another objective: {found.folder}")
    else:
        cause = "another build, device or number of threads than the run's adds up in another order"
        if found.processes > 1:
            cause = f"the run's learner was {found.processes} processes, and one adds up in another order"
        typer.echo(
            f"step {odd.step} is the first that differs ({', '.join(odd.differs)}): {cause}: {found.folder}"
        )


def _pair(before: float | None, after: float | None) -> str:
    shown = ["" if value is None else f"{value:.4g}" for value in (before, after)]
    return shown[0] if before == after else " → ".join(shown)
