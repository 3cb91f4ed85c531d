"""`temper resume RUN`: a learner that its guard has paused goes on.

Invariant: it is said of the step that the pause is about, so a later pause needs a word of its own.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from shared.contracts import Control
    from shared.settings import Settings


def resume(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run's folder, runs/<name>.")],
) -> None:
    """Let a run go on that its guard has paused."""
    import asyncio

    from shared.errors import ConfigError
    from temper.audit.place import connected, run_settings

    with connected(run_settings(run)) as settings:
        pause = asyncio.run(_newest_word(settings))
        if pause is None or pause.kind != "pause":
            raise ConfigError(f"run {settings.run.name!r} is not paused: its guard has stopped nothing")
        asyncio.run(_tell(settings, pause.step))
    typer.echo(f"{settings.run.name} goes on after step {pause.step}; it was: {pause.reason}")


async def _newest_word(settings: Settings) -> Control | None:
    from shared.bus.reader import LogReader
    from shared.bus.topics import TopicNames
    from shared.contracts import Control

    newest: Control | None = None
    reader = LogReader(settings, "scheduler", [TopicNames(settings.bus.namespace).control])
    try:
        async for delivery in reader.to_end():
            message = delivery.message
            if (
                isinstance(message, Control)
                and message.run_id == settings.run.name
                and message.kind in ("pause", "resume")
            ):
                newest = message
    finally:
        await reader.close()
    return newest


async def _tell(settings: Settings, step: int) -> None:
    import time

    from shared.bus.producer import TypedProducer
    from shared.bus.topics import TopicNames
    from shared.contracts import Control

    control = Control(
        run_id=settings.run.name, kind="resume", reason="resumed by hand", body={"step": step},
        created_ms=int(time.time() * 1000),
    )  # fmt: skip
    producer = TypedProducer(settings, "temper-resume")
    try:
        await producer.send(TopicNames(settings.bus.namespace).control, control)
    finally:
        await producer.close()
