"""`temper scheduler|rollout|verifier|learner --config run.toml`: one process of one service.

Invariant: SIGTERM and SIGINT ask the service to drain; it leaves with 0 when it has drained or when its run
has ended, and with the error's code otherwise.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from shared.contracts import Service
    from shared.settings import Settings

SERVICES: dict[Service, str] = {
    "scheduler": "Decide what is attempted; one per run.",
    "rollout": "Attempt tasks with the current policy; any number.",
    "verifier": "Turn attempts into rewards; any number.",
    "learner": "Turn rewarded groups into policy updates; one per run.",
}

ConfigOption = Annotated[Path, typer.Option("--config", help="The run's TOML file.")]
WorkerOption = Annotated[
    str, typer.Option("--worker-id", help="Name of this process in heartbeats and traces.")
]


def register(app: typer.Typer) -> None:
    """Adds one command a service."""
    for service, text in SERVICES.items():
        app.command(service, help=text)(_command(service))


def _command(service: Service) -> Callable[..., None]:
    def command(config: ConfigOption, worker_id: WorkerOption = "") -> None:
        from shared.settings import load_settings

        settings = load_settings(config)
        run_service(settings, service, worker_id or default_worker_id(service))

    return command


def default_worker_id(service: Service) -> str:
    """`rollout-<host>-<pid>`: unique without being told."""
    import os
    import socket

    return f"{service}-{socket.gethostname()}-{os.getpid()}"


def run_service(settings: Settings, service: Service, worker_id: str) -> None:
    """Runs one service until it has drained or its run has ended.

    Raises `TemperError` as the service does, and `ConfigError` where no broker is configured.
    """
    import asyncio
    import signal

    from shared.bus.connect import await_broker, await_topics
    from shared.errors import ConfigError
    from shared.telemetry.logging import configure_logging

    if not settings.bus.bootstrap_servers:
        raise ConfigError(
            f"{service}: bus.bootstrap_servers is empty; set it or TEMPER_BUS__BOOTSTRAP_SERVERS, "
            "or use `temper up`, which starts a broker"
        )
    configure_logging(settings.telemetry, service=service, worker_id=worker_id, run_id=settings.run.name)

    async def body() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        await await_broker(settings.bus)
        await await_topics(settings)
        await importlib.import_module(f"services.{service}.service").run(settings, worker_id, stop)

    asyncio.run(body())
