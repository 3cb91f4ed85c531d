"""Where the commands' own logs go.

Invariant: what a command answers is alone on stdout; whatever it logs, its libraries included, is on stderr.
"""

from __future__ import annotations


def logs_on_stderr(command: str) -> None:
    """For a command that is no service: warnings and errors only, in the services' form."""
    from shared.settings import TelemetrySettings
    from shared.telemetry.logging import configure_logging

    configure_logging(TelemetrySettings(log_level="warning"), service=command, worker_id="", run_id="")
