"""The `temper` command.

Invariant: whatever goes wrong on purpose ends in one line on stderr that names the thing and the mend, and in
an exit code that means something (see `shared.errors`); only a bug shows a traceback.
"""

from __future__ import annotations

import sys

import typer

from shared.errors import TemperError
from temper.cli import (
    attempt,
    audit,
    bench,
    broker,
    chat,
    checkpoint,
    dead,
    domains,
    holds,
    judge,
    models,
    replay,
    report,
    resume,
    sandbox,
    services,
    settings,
    storage,
    topics,
    trace,
    up,
)

INTERRUPTED = 130

app = typer.Typer(
    name="temper",
    help="Post-train language models with verifiable rewards, through four services that talk over Kafka.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # half of the time of `--help` would go into importing rich
)
app.command("up")(up.up)
services.register(app)
app.command("broker")(broker.broker)
app.command("bench")(bench.bench)
app.command("trace")(trace.trace)
app.command("audit")(audit.audit)
app.command("report")(report.report)
app.command("resume")(resume.resume)
app.command("replay")(replay.replay)
app.command("judge")(judge.judge)
app.command("settings")(settings.settings)
app.command("attempt")(attempt.attempt)
app.command("chat")(chat.chat)
app.add_typer(checkpoint.app, name="checkpoint")
app.add_typer(topics.app, name="topics")
app.add_typer(dead.app, name="dead")
app.add_typer(domains.app, name="domains")
holds.register(domains.app)
app.add_typer(models.app, name="models")
app.add_typer(sandbox.app, name="sandbox")
app.add_typer(storage.app, name="storage")


def main() -> None:
    """Entry point of the distribution's script."""
    try:
        app()
    except TemperError as error:
        print(f"temper: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
