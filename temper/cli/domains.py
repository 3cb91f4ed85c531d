"""`temper domains`: what can be trained on, and whether it may be.

Invariant: `admit` ends with exit code 0 only for a domain that passed every trial.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from shared.domains.admission import Finding
    from shared.domains.base import Domain

app = typer.Typer(help="List, show and try domains.", no_args_is_help=True)

NameArgument = Annotated[str, typer.Argument(help="A known domain, or its place as 'module:Class'.")]
DifficultyOption = Annotated[str, typer.Option("--difficulty", help="As JSON: '{\"digits\": 3}'.")]


@app.command("list")
def list_domains() -> None:
    """Every domain that is built in or installed, with its version, cell and difficulty."""
    from rich.table import Table

    from shared.domains.registry import domain_places, load_domain
    from shared.errors import ConfigError
    from temper.cli.screen import screen

    table = Table("domain", "version", "cell", "difficulty (default)", "place")
    broken: list[ConfigError] = []
    for name, place in domain_places().items():
        try:
            domain = load_domain(name)
        except ConfigError as error:  # the others are still worth seeing
            broken.append(error)
            continue
        table.add_row(name, str(domain.version), domain.cell, _defaults(domain), place)
    screen().print(table)
    for problem in broken:
        typer.echo(f"temper: {problem}", err=True)
    if broken:
        raise typer.Exit(ConfigError.exit_code)


@app.command()
def show(
    name: NameArgument,
    seed: Annotated[int, typer.Option(help="From 2^40 (1099511627776) on, seeds are held out.")] = 0,
    difficulty: DifficultyOption = "{}",
) -> None:
    """One instance: its question, the right answer, and the answers next to it."""
    from shared.domains.admission import first_look
    from shared.domains.base import is_held_out
    from shared.domains.registry import load_domain

    domain = load_domain(name)
    instance, answers = first_look(domain, seed, parsed_difficulty(difficulty))
    split = "held out" if is_held_out(seed) else "training"
    print(f"{domain.name} version {domain.version}, seed {seed} ({split}), digest {instance.digest()}")
    for message in instance.messages:
        print(f"\n[{message.role}]\n{message.content}")
    print(f"\n[oracle]\n{answers.oracle}\n\n[near misses]")
    for miss in (*answers.near_misses, *answers.exploits):
        print(f"{miss.verdict:8} {str(miss.answer)[:60]!a}" + (f"  ({miss.why})" if miss.why else ""))


@app.command()
def admit(
    name: NameArgument,
    difficulty: Annotated[
        list[str] | None, typer.Option("--difficulty", help="As JSON: '{\"digits\": 3}'; may be repeated.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Instances of each split at each difficulty.")] = 16,
    repeats: Annotated[int, typer.Option(min=1, help="Runs of each check in each of two processes.")] = 2,
    check_seconds: Annotated[float, typer.Option(min=0.1, help="Budget of one check.")] = 5.0,
) -> None:
    """Try a domain: oracle, do-nothing, near misses and exploits get the right verdict, again and again."""
    import asyncio

    from shared.domains.admission import admit as try_domain
    from shared.plain_errors import counted

    report = asyncio.run(
        try_domain(
            name,
            difficulties=[parsed_difficulty(text) for text in difficulty or ["{}"]],
            seeds=seeds,
            repeats=repeats,
            check_seconds=check_seconds,
        )
    )
    for line in finding_lines(report.findings):
        print(line)
    verdict = "admitted" if report.admitted else "quarantined: flaky" if report.flaky else "refused"
    print(
        f"{report.domain} version {report.version}: {verdict} ({counted(report.instances, 'instance')}, "
        f"{counted(report.distinct, 'different question')}, {counted(report.checks, 'check')}, "
        f"{counted(len(report.findings), 'finding')})"
    )
    if not report.admitted:
        raise typer.Exit(1)


def finding_lines(findings: Iterable[Finding]) -> list[str]:
    """One line a finding; what has one cause is one mistake, said once with how often it was met."""
    groups: dict[tuple[str, str], list[Finding]] = {}
    for number, finding in enumerate(findings):
        groups.setdefault((finding.trial, finding.cause or str(number)), []).append(finding)
    return [
        f"{same[0]}" + (f" (and {len(same) - 1} times more)" if len(same) > 1 else "")
        for same in groups.values()
    ]


def _defaults(domain: Domain) -> str:
    from shared.errors import ConfigError

    try:
        defaults = domain.parse_difficulty({}).model_dump(mode="json")
    except ConfigError:  # a key without a default is not a mistake
        return "none: every run must say"
    return "\n".join(f"{key}: {json.dumps(value)}" for key, value in defaults.items())


def parsed_difficulty(text: str) -> dict[str, Any]:
    """Raises `ConfigError`."""
    from shared.errors import ConfigError

    try:
        found = json.loads(text)
    except ValueError as error:
        raise ConfigError(
            f"--difficulty is {text!r}: {error}; give a JSON object such as '{{\"digits\": 3}}'"
        ) from error
    if not isinstance(found, dict):
        raise ConfigError(f"--difficulty is {text!r}: give a JSON object such as '{{\"digits\": 3}}'")
    return found
