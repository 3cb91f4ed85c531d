"""`temper resume RUN`: a learner that its guard has paused goes on.

Invariant: it is said of the step that the pause is about, so a later pause needs a word of its own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def resume(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run's folder, runs/<name>.")],
) -> None:
    """Let a run go on that its guard has paused."""
    from shared.errors import ConfigError
    from temper.audit.place import connected, run_settings
    from temper.cli.control_words import tell, words

    with connected(run_settings(run)) as settings:
        said = [word for word in words(settings) if word.kind in ("pause", "resume")]
        pause = said[-1] if said else None
        if pause is None or pause.kind != "pause":
            raise ConfigError(f"run {settings.run.name!r} is not paused: its guard has stopped nothing")
        tell(settings, "resume", "resumed by hand", body={"step": pause.step})
    typer.echo(f"{settings.run.name} goes on after step {pause.step}; it was: {pause.reason}")
