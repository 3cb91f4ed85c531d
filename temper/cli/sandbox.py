"""`temper sandbox`: one program in a jail, and what became of it.

Invariant: what the program printed never breaks the form of what is printed here: bytes become text with backslash
escapes, and are there as base64 too where they are no UTF-8.
"""

from __future__ import annotations

import base64
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from shared.sandbox.limits import Limits
    from shared.sandbox.outcome import Result
    from shared.sandbox.settings import SandboxSettings

app = typer.Typer(help="Run a program in a jail; say what this machine offers for it.", no_args_is_help=True)

NOT_WELL, INFRASTRUCTURE = 1, 3


@app.command()
def run(
    command: Annotated[list[str], typer.Argument(help="The program and its arguments, after `--`.")],
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print the outcome as one JSON object.")] = False,
    wall: Annotated[float, typer.Option(help="Seconds of wall time.")] = 10.0,
    cpu: Annotated[float, typer.Option(help="Seconds of CPU time of all its processes.")] = 10.0,
    memory: Annotated[int, typer.Option(help="MiB, of all its processes and its files.")] = 256,
    processes: Annotated[int, typer.Option(help="Processes and threads at once.")] = 32,
    output: Annotated[int, typer.Option(help="KiB kept of each stream; four times of it end the run.")] = 256,
    disk: Annotated[int, typer.Option(help="MiB, of each of /work, /tmp and /dev/shm.")] = 64,
    file: Annotated[int, typer.Option(help="MiB, of one file.")] = 64,
    stdin: Annotated[
        Path | None, typer.Option(help="A file for its standard input; /dev/stdin for ours.")
    ] = None,
    root: Annotated[str, typer.Option(help="A root file system of [sandbox.roots].")] = "default",
    cgroups: Annotated[str, typer.Option(help="auto, v1, v2 or none.")] = "",
    allow_weaker: Annotated[
        list[str] | None, typer.Option(help="A weaker mode that may be taken: rlimits_only.")
    ] = None,
    nsjail: Annotated[str, typer.Option(help="Another nsjail binary.")] = "",
    config: Annotated[Path | None, typer.Option("--config", help="A run's TOML, for its [sandbox].")] = None,
) -> None:
    """Run one command in a fresh jail.

    With --json the exit code is 0 whenever there is an outcome, whatever it is; without, 0 only if the program exited
    with 0, else 1. 2 is a configuration that cannot be used, 3 a fault of ours: then nothing is said about the program.
    """
    import asyncio

    from shared.errors import ConfigError
    from shared.sandbox.command import Command
    from shared.sandbox.limits import Limits
    from shared.sandbox.outcome import Outcome
    from temper.cli.logs import logs_on_stderr

    logs_on_stderr("sandbox")
    settings = _settings(config, cgroups, allow_weaker or [], nsjail)
    limits = Limits(
        wall_s=wall,
        cpu_s=cpu,
        memory_mb=memory,
        processes=processes,
        output_kb=output,
        disk_mb=disk,
        file_mb=file,
    )
    try:
        given = stdin.read_bytes() if stdin is not None else b""
    except OSError as error:
        raise ConfigError(f"--stdin {stdin}: {error.strerror}; give a file that can be read") from error
    made = Command(tuple(command), stdin=given)
    mode, result = asyncio.run(_run(settings, made, limits, root))
    print(json.dumps(shown(result, mode)) if as_json else _plain(result, mode))
    if result.outcome is Outcome.INFRASTRUCTURE:
        raise typer.Exit(INFRASTRUCTURE)
    if not as_json and not result.ok:
        raise typer.Exit(NOT_WELL)


@app.command()
def doctor(
    *,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
    cgroups: Annotated[str, typer.Option(help="auto, v1, v2 or none.")] = "",
    allow_weaker: Annotated[
        list[str] | None, typer.Option(help="A weaker mode that may be taken: rlimits_only.")
    ] = None,
    nsjail: Annotated[str, typer.Option(help="Another nsjail binary.")] = "",
    config: Annotated[Path | None, typer.Option("--config", help="A run's TOML, for its [sandbox].")] = None,
) -> None:
    """Try everything that jails need here: what is there, what is missing, and the mend.

    Exit code 0: jails can be run with these settings; 3: they cannot.
    """
    import asyncio

    from shared.sandbox.doctor import examine

    found = asyncio.run(examine(_settings(config, cgroups, allow_weaker or [], nsjail)))
    if as_json:
        lines = [asdict(line) for line in found.lines]
        print(json.dumps({"usable": found.usable, "weaker": found.weaker, "lines": lines}))
    else:
        from rich.table import Table

        from temper.cli.screen import screen

        table = Table("what", "state", "found", "mend", box=None)
        for line in found.lines:
            table.add_row(line.name, line.status, line.found, line.mend)
        screen().print(table)
        verdict = "can be run, in the weaker mode that was allowed" if found.weaker else "can be run"
        print(f"jails {verdict if found.usable else 'cannot be run here'}")
    if not found.usable:
        raise typer.Exit(INFRASTRUCTURE)


async def _run(settings: SandboxSettings, command: Any, limits: Limits, root: str) -> tuple[str, Result]:
    from shared.sandbox.sandbox import Sandbox

    async with Sandbox(settings) as sandbox:
        return sandbox.mode, await sandbox.run(command, limits, root=root)


def _settings(config: Path | None, cgroups: str, weaker: list[str], nsjail: str) -> SandboxSettings:
    """Of a run, or of the machine as it is, with what the options say. Raises `ConfigError`."""
    from pydantic import ValidationError

    from shared.errors import ConfigError
    from shared.plain_errors import explain
    from shared.sandbox.settings import SandboxSettings
    from shared.settings import load_settings

    settings = load_settings(config).sandbox if config is not None else SandboxSettings()
    document = settings.model_dump()
    document |= {key: value for key, value in (("cgroups", cgroups), ("nsjail", nsjail)) if value}
    document["allow_weaker"] = (*settings.allow_weaker, *weaker)
    try:
        return SandboxSettings.model_validate(document)
    except ValidationError as error:
        raise ConfigError(f"temper sandbox: {explain(SandboxSettings, error)}") from error


def shown(result: Result, mode: str) -> dict[str, Any]:
    """The outcome as plain data; keys are stable."""
    streams: dict[str, Any] = {}
    for name, content in (("stdout", result.stdout), ("stderr", result.stderr)):
        streams[name] = content.decode(errors="backslashreplace")
        try:
            content.decode()
        except UnicodeDecodeError:
            streams[f"{name}_base64"] = base64.b64encode(content).decode()
    return {
        "outcome": str(result.outcome),
        "exit_code": result.exit_code,
        "signal": result.signal,
        "detail": result.detail,
        **streams,
        "stdout_truncated": result.stdout_truncated,
        "stderr_truncated": result.stderr_truncated,
        "usage": asdict(result.usage),
        "left_behind": result.left_behind,
        "cgroups": mode,
    }


def _plain(result: Result, mode: str) -> str:
    said = shown(result, mode)
    usage = result.usage
    how = {"exited": f"with {result.exit_code}", "signalled": f"by signal {result.signal}"}
    lines = [
        f"{result.outcome} {how.get(result.outcome, '')}".rstrip()
        + (f": {result.detail}" if result.detail else ""),
        f"wall {usage.wall_s:.3f} s, CPU {usage.cpu_s:.3f} s, memory {usage.memory_peak_bytes / 2**20:.1f} MiB, "
        f"processes {usage.processes_peak}, left behind {result.left_behind}, counted by cgroups {mode}",
    ]
    for name in ("stdout", "stderr"):
        if said[name]:
            cut = " (cut)" if said[f"{name}_truncated"] else ""
            lines += [f"--- {name}{cut}", said[name].rstrip("\n")]
    return "\n".join(lines)
