"""`temper report runs/<name>`: what a run learnt, and whether that is enough."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from temper.report.summary import Summary

NOT_ENOUGH = 1


def report(
    folder: Annotated[Path, typer.Argument(help="The run's folder.")],
    min_pass_rate: Annotated[
        float, typer.Option(help="Held-out pass rate the last evaluation must have.")
    ] = 0.0,
    min_gain: Annotated[
        float, typer.Option(help="By how much it must be above the first evaluation.")
    ] = -1.0,
    as_json: Annotated[bool, typer.Option("--json", help="The summary as JSON.")] = False,
) -> None:
    """Show what the run learnt as tables; exit code 1 when it is below what was asked for."""
    from temper.cli.replay import show_replay
    from temper.replay.record import read_record
    from temper.report.collect import report_of_folder

    summary, ended = report_of_folder(folder)
    if not ended:
        typer.echo(f"run {summary.run_id} has not ended: this is how far it has come", err=True)
    if as_json:
        typer.echo(summary.model_dump_json())
    else:
        _show(summary)
        replayed = read_record(folder)
        if replayed is not None:
            show_replay(replayed)
    complaints = shortfalls(summary, min_pass_rate, min_gain)
    for complaint in complaints:
        typer.echo(complaint, err=True)
    if complaints:
        raise typer.Exit(NOT_ENOUGH)


def shortfalls(summary: Summary, min_pass_rate: float, min_gain: float) -> list[str]:
    """What the run misses, in words; empty when it is enough."""
    wanted = min_pass_rate > 0 or min_gain > -1
    if not wanted:
        return []
    if not summary.evaluations:
        return [f"run {summary.run_id} has no evaluation: nothing can be said of its pass rate"]
    first, last = (summary.evaluations[i].overall.rate or 0.0 for i in (0, -1))
    found = []
    if last < min_pass_rate:
        found.append(f"held-out pass rate is {last:.0%}, asked for at least {min_pass_rate:.0%}")
    if last - first < min_gain:
        found.append(
            f"held-out pass rate went from {first:.0%} to {last:.0%}, asked for a gain of {min_gain:.0%}"
        )
    return found


def _show(summary: Summary) -> None:
    from rich import box
    from rich.table import Table

    from temper.cli.screen import screen

    console = screen()
    held_out = Table(title=f"{summary.run_id}: held-out pass rate", title_justify="left", box=box.SIMPLE)
    names = sorted({name for evaluation in summary.evaluations for name in evaluation.domains})
    for column in ("evaluation", "step", *names, "overall", "95 %"):
        held_out.add_column(column, justify="left" if column == "evaluation" else "right")
    for evaluation in summary.evaluations:
        cells = [evaluation.domains.get(name) for name in names]
        overall = evaluation.overall
        held_out.add_row(
            evaluation.name,
            str(evaluation.step),
            *(f"{c.passed}/{c.count}" if c else "" for c in cells),
            "" if overall.rate is None else f"{overall.rate:.0%}",
            "" if overall.low is None or overall.high is None else f"{overall.low:.0%}–{overall.high:.0%}",
        )
    stages = Table(title="stages", title_justify="left", box=box.SIMPLE)
    for column in (
        "stage",
        "steps",
        "trained",
        "stale",
        "dropped",
        "faulted",
        "tokens",
        "valid/s",
        "seconds",
    ):
        stages.add_column(column, justify="left" if column == "stage" else "right")
    for stage in summary.stages:
        slots = stage.slots
        stages.add_row(
            stage.kind,
            *map(str, (stage.steps, slots.trained, slots.stale, slots.dropped, slots.faulted)),
            str(stage.tokens.get("trained", 0)),
            f"{stage.effective_throughput:.2f}",
            f"{stage.wall_seconds:.0f}",
        )
    if summary.evaluations:
        console.print(held_out)
        for note in summary.notes:
            console.print(note, markup=False)
    else:
        console.print(f"{summary.run_id}: nothing was evaluated on held-out instances", markup=False)
    console.print(stages)
    for stage in summary.stages:
        for note in stage.notes:
            console.print(note, markup=False)
    for name, reason in summary.held.items():
        console.print(f"domain {name} is held back: {reason}", markup=False)
    console.print(
        f"effective throughput {summary.effective_throughput:.2f} valid trajectories/s, {summary.wall_seconds:.0f} s in all"
    )
