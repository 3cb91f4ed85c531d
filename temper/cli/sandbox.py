"""`temper sandbox`: one program in a jail, and what became of it.

Invariant: what the program printed never breaks the form of what is printed here: bytes become text with backslash
escapes, and are there as base64 too where they are no UTF-8. For people each of its lines stands behind a bar and
control characters are escaped, so it can neither steer the terminal nor forge a line of ours. Its standard input is read
in bounded time and space before the run begins.
"""

from __future__ import annotations

import base64
import json
import os
import select
import sys
import time
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
MOST_STDIN = 64 << 20
"""Bytes: the whole input is held in memory, and a device has no end."""
BAR = "| "


@app.command()
def run(
    command: Annotated[list[str], typer.Argument(help="The program and its arguments, after `--`.")],
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print the outcome as one JSON object.")] = False,
    wall: Annotated[
        float, typer.Option(help="Seconds of wall time; waiting for a processor is not counted.")
    ] = 10.0,
    cpu: Annotated[float, typer.Option(help="Seconds of CPU time of all its processes.")] = 10.0,
    memory: Annotated[int, typer.Option(help="MiB, of all its processes and its files.")] = 256,
    processes: Annotated[int, typer.Option(help="Processes and threads at once.")] = 32,
    output: Annotated[int, typer.Option(help="KiB kept of each stream; four times of it end the run.")] = 256,
    disk: Annotated[int, typer.Option(help="MiB, of each of /work, /tmp and /dev/shm.")] = 64,
    file: Annotated[int, typer.Option(help="MiB, of one file.")] = 64,
    stdin: Annotated[
        Path | None, typer.Option(help="A file for its standard input, 64 MiB at most; /dev/stdin for ours.")
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
    made = Command(tuple(command), stdin=read_input(stdin, wall) if stdin is not None else b"")
    mode, result = asyncio.run(_run(settings, made, limits, root))
    _print(json.dumps(shown(result, mode)) if as_json else plain(result, mode))
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


def read_input(path: Path, seconds: float) -> bytes:
    """All of it. Raises `ConfigError` for what cannot be read, is over `MOST_STDIN`, or has not ended after `seconds`:
    a pipe that nobody writes to and a device without end are no input of a program."""
    from shared.errors import ConfigError

    try:
        # Opening a named pipe would wait for its writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            return _to_its_end(descriptor, path, seconds)
        finally:
            os.close(descriptor)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"--stdin {path}: {reason}; give a file that can be read") from error


def _to_its_end(descriptor: int, path: Path, seconds: float) -> bytes:
    from shared.errors import ConfigError

    content, until = bytearray(), time.monotonic() + seconds
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    while len(content) <= MOST_STDIN:
        left = until - time.monotonic()
        if left <= 0 or not poll.poll(left * 1000):
            raise ConfigError(
                f"--stdin {path} did not end within {seconds:g} s: close its writer, or give more --wall"
            )
        try:
            chunk = os.read(descriptor, 1 << 20)
        except BlockingIOError:
            continue
        if not chunk:
            return bytes(content)
        content += chunk
    raise ConfigError(f"--stdin {path} is over {MOST_STDIN >> 20} MiB: give a shorter file")


def _print(text: str) -> None:
    """In the terminal's own characters. Raises `StorageError` where it cannot be written."""
    from shared.errors import StorageError

    encoding = sys.stdout.encoding or "utf-8"
    try:
        print(text.encode(encoding, "backslashreplace").decode(encoding), flush=True)
    except OSError as error:
        # What is still in the buffer would be tried again at the end, with a traceback.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise StorageError(f"stdout: {error.strerror}; the run was made, and its outcome is lost") from error


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


def plain(result: Result, mode: str) -> str:
    """The outcome for people, in lines: ours begin at the edge, the program's behind a bar."""
    said = shown(result, mode)
    usage = result.usage
    how = {"exited": f"with {result.exit_code}", "signalled": f"by signal {result.signal}"}
    lines = [
        f"{result.outcome} {how.get(result.outcome, '')}".rstrip()
        + (f": {_harmless(result.detail)}" if result.detail else ""),
        f"wall {usage.wall_s:.3f} s ({usage.waited_s:.3f} of it waiting for a processor), CPU {usage.cpu_s:.3f} s, "
        f"memory {usage.memory_peak_bytes / 2**20:.1f} MiB, "
        f"processes {usage.processes_peak}, left behind {result.left_behind}, counted by cgroups {mode}",
    ]
    for name in ("stdout", "stderr"):
        if said[name]:
            cut = " (cut)" if said[f"{name}_truncated"] else ""
            lines += [f"--- {name}{cut}", *(BAR + _harmless(line) for line in _lines(said[name]))]
    return "\n".join(lines)


def _lines(text: str) -> list[str]:
    """At line feeds only: `splitlines` knows ten more ends of a line."""
    return text.rstrip("\n").split("\n")


def _harmless(text: str) -> str:
    """Without what moves a cursor, sets a title, or turns the direction of writing: escaped as in a Python literal."""
    return "".join(mark if mark.isprintable() or mark == "\t" else ascii(mark)[1:-1] for mark in text)
