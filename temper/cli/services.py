"""`temper scheduler|rollout|verifier|learner --config run.toml`: one process of one service.

Invariant: SIGTERM and SIGINT ask the service to drain; it leaves with 0 when it has drained or when its run
has ended, and with the error's code otherwise. Asked before it has begun, it leaves at once; later, it is gone
`bus.drain_s` and a few seconds after it was asked to, whatever it waits for.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shared.errors import DependencyError

if TYPE_CHECKING:
    import asyncio

    from shared.contracts import Service
    from shared.settings import Settings

SERVICES: dict[Service, str] = {
    "scheduler": "Decide what is attempted; one per run.",
    "rollout": "Attempt tasks with the current policy; any number.",
    "verifier": "Turn attempts into rewards; any number.",
    "learner": "Turn rewarded groups into policy updates; one per run.",
}

GRACE_S = 2.0
"""Between the end of the drain time and the cancellation of what still runs."""
HARD_GRACE_S = 8.0
"""Between the end of the drain time and the end of the process. `temper up` kills two seconds later."""

LINGER_S = 1.0
"""Between the end of a service that was asked to stop and the end of its process, for its threads to end."""

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
        refuse_stages(settings, service)
        name = worker_id or default_worker_id(service)
        if "RANK" in os.environ:
            from temper.up.child import tie_to_parent

            tie_to_parent(
                os.getppid()
            )  # whoever starts ranks together is gone: nobody would end them together
        if service == "learner" and settings.learner.processes > 1 and "RANK" not in os.environ:
            from temper.up.ranks import run_ranks

            patience = settings.bus.drain_s + HARD_GRACE_S + 0.5
            run_ranks([service, "--config", str(config)], name, settings.learner.processes, patience)
            return
        run_service(settings, service, name)

    return command


def refuse_stages(settings: Settings, service: Service) -> None:
    """What the learner would refuse, said by every service before it waits for a broker or claims the run's folder.

    A folder that a stage begins with is looked for by the learner alone: other machines need not have it. Raises
    `ConfigError`.
    """
    from services.learner.sources import check_sources
    from services.learner.stages import check_stages

    check_stages(settings)
    if service == "learner":
        check_sources(settings)


def default_worker_id(service: Service) -> str:
    """`rollout-<host>-<pid>`: unique without being told."""
    import socket

    return f"{service}-{socket.gethostname()}-{os.getpid()}"


def run_service(settings: Settings, service: Service, worker_id: str) -> None:
    """Runs one service until it has drained or its run has ended.

    Raises `TemperError` as the service does, and `ConfigError` where no broker is configured or a rollout cannot read
    the agent program of a domain.
    """
    import asyncio
    import signal

    from shared.errors import ConfigError
    from shared.telemetry.logging import configure_logging

    if not settings.bus.bootstrap_servers:
        raise ConfigError(
            f"{service}: bus.bootstrap_servers is empty; set it or TEMPER_BUS__BOOTSTRAP_SERVERS, "
            "or use `temper up`, which starts a broker"
        )
    if service == "rollout":  # before it waits for a broker and loads a model
        for declared in settings.domains:
            settings.agent_of(declared.name)
    configure_logging(settings.telemetry, service=service, worker_id=worker_id, run_id=settings.run.name)

    async def body() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()

        def ask() -> None:
            stop.set()
            leave_for_certain(service, settings.bus.drain_s + HARD_GRACE_S)

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, ask)
        work = asyncio.create_task(start(settings, service, worker_id, stop))
        await drained(work, stop, settings.bus.drain_s + GRACE_S)
        if stop.is_set():
            leave_for_certain(service, LINGER_S, said=False)

    asyncio.run(body())


async def start(settings: Settings, service: Service, worker_id: str, stop: asyncio.Event) -> None:
    """Waits for broker and topics, then runs the service. Asked to stop before that, it returns at once."""
    import asyncio

    from shared.bus.connect import await_broker, await_topics
    from shared.stopping import unless
    from temper.up.resolved import claim

    if service != "learner" or os.environ.get("RANK", "0") == "0":  # other ranks know of no broker
        await unless(stop, await_broker(settings.bus))
        await unless(stop, await_topics(settings))
        if not stop.is_set():
            await asyncio.to_thread(claim, settings)
    module = await unless(stop, imported(service))
    if stop.is_set() or module is None:
        return
    try:
        await module.run(settings, worker_id, stop)
    except ImportError as error:
        raise not_installed(service, error) from error


async def imported(service: Service) -> Any:
    """The service's module. In a thread: that takes seconds, and whoever asks to stop meanwhile is heard.

    Raises `DependencyError` where a library that it needs is not installed.
    """
    import asyncio

    try:
        return await asyncio.to_thread(importlib.import_module, f"services.{service}.service")
    except ImportError as error:
        raise not_installed(service, error) from error


def not_installed(service: Service, error: ImportError) -> DependencyError:
    package = "temper-rl" if service == "scheduler" else f"temper-rl[{service}]"
    return DependencyError(f"{service}: {error}; install what it needs with `pip install '{package}'`")


async def drained(work: asyncio.Task[None], stop: asyncio.Event, patience_s: float) -> None:
    """Awaits `work`; once `stop` is set, for `patience_s` more, then cancels it.

    A send without a broker waits for as long as the broker is away. What is cut off was not acknowledged, so the
    next start does it again.
    """
    import asyncio

    asked = asyncio.create_task(stop.wait())
    await asyncio.wait({work, asked}, return_when=asyncio.FIRST_COMPLETED)
    asked.cancel()
    if stop.is_set():
        await asyncio.wait({work}, timeout=patience_s)
        work.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await work


def leave_for_certain(service: Service, after_s: float, *, said: bool = True) -> None:
    """Ends this process `after_s` from now if it is still there: a thread that waits for a lost broker holds it.

    `said`: it did not drain, which is told and is a failure; otherwise all is done, and only a thread is left that
    still loads a model for nobody.
    """
    import threading

    def leave() -> None:
        if said:
            print(
                f"temper: {service} did not drain in {after_s:.0f} s; what it left is done again",
                file=sys.stderr,
            )
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(DependencyError.exit_code if said else 0)

    timer = threading.Timer(after_s, leave)
    timer.daemon = True
    timer.start()
