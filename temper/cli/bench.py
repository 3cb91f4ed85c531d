"""`temper bench`: the figures that the README states, measured here.

Invariant: what is printed was measured by this command on this machine, one JSON object a line.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def bench(
    what: Annotated[str, typer.Argument(help="A module of benchmarks/, such as sandbox or bus.")],
    arguments: Annotated[list[str] | None, typer.Argument(help="Its own options, after `--`.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON lines, which is the only form.")] = False,
) -> None:
    """Measure. Benchmarks are no part of the installed package: they run from a checkout."""
    import subprocess
    import sys

    import temper
    from shared.errors import ConfigError, DependencyError

    checkout = Path(temper.__file__).resolve().parents[1]
    folder = checkout / "benchmarks"
    if not (folder / "__main__.py").is_file():
        raise DependencyError(
            f"temper bench {what}: there are no benchmarks beside the installed package ({checkout}); run it from a "
            "checkout of the repository, installed with `pip install -e .`"
        )
    known = sorted(path.stem for path in folder.glob("[a-z]*.py") if "\ndef main(" in path.read_text("utf-8"))
    if what not in known:
        raise ConfigError(
            f"temper bench {what}: there is no benchmarks/{what}.py; there are: {', '.join(known)}"
        )
    # Its own process: the checkout's root comes onto the import path there, never into a service's.
    form = ["--json"] if as_json else []
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{what}", *form, *(arguments or [])], cwd=checkout, check=False
    )
    raise typer.Exit(done.returncode)
