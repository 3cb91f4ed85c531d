"""A whole run on this machine: broker, topics, services, progress, summary.

Invariant: when `LocalRun.run` returns or raises, nothing that it started is running, and whatever was learnt
is durable: the same command resumes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from pathlib import Path
from typing import Any

from shared.bus.admin import apply
from shared.bus.connect import wait_for_broker
from shared.bus.reader import LogReader
from shared.bus.topics import TopicNames
from shared.contracts import Heartbeat, Message, Service
from shared.errors import ConfigError, StorageError
from shared.model_folder import check_model_folder
from shared.settings import Settings, load_settings
from shared.stopping import in_background, unless
from temper.audit.place import REPLAY
from temper.up.notes import note
from temper.up.processes import ProcessTree
from temper.up.progress import Progress, at_work
from temper.up.refusing import refuse_mistakes
from temper.up.resolved import FILE_NAME, guard_differences, refuse_changes, resolve, to_toml
from temper.up.view import View

BROKER = "broker"
SLACK_S = 10.0
"""On top of the services' own drain time before they are killed."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Holds the run's folder; raises `ConfigError` when another `temper up` has it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        opened = (folder / ".lock").open("w")
    except OSError as error:
        raise StorageError(
            f"run folder {folder} cannot be written: {error.strerror}; set run.folder"
        ) from error
    with opened as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(
                f"run folder {folder} is in use by another `temper up`; end that one or change run.name"
            ) from error
        yield


def prepare(resolved: Settings) -> bool:
    """Writes the settings into the run's folder; true when it is a new run.

    Raises `ConfigError` when they contradict the run that is there, `DependencyError` for a model that is not, or that
    can be seen to be damaged.
    """
    check_model_folder(resolved.model.path)
    place = resolved.run_folder / FILE_NAME
    fresh = not place.exists()
    if (resolved.run_folder / REPLAY).exists():
        raise ConfigError(
            f"{resolved.run_folder} is a replay of another run and has no topics of its own: it is not run; export a "
            "checkpoint of it, or let a stage of a new run start_from one"
        )
    if not fresh:
        before = load_settings(place, environment={})
        refuse_changes(before, resolved)
        bounds = guard_differences(before, resolved)
        if bounds:
            print(
                f"run {resolved.run.name!r} goes on with another guard: {'; '.join(bounds)}", file=sys.stderr
            )
    note(place, to_toml(resolved))
    return fresh


class LocalRun:
    """One run on this machine."""

    def __init__(self, settings: Settings, *, fresh: bool) -> None:
        self._settings = settings
        self._fresh = fresh
        self._started_s = time.monotonic()
        self._progress = Progress(settings)
        self._view = View(self._progress, self._started_s)
        self._bootstrap = settings.bus.bootstrap_servers or f"127.0.0.1:{free_port()}"
        self._processes = ProcessTree(
            settings.run_folder,
            {"TEMPER_BUS__BOOTSTRAP_SERVERS": self._bootstrap},
            self._view.line,
            lambda: self._progress.moves,
        )
        self._connected = settings.model_copy(
            update={"bus": settings.bus.model_copy(update={"bootstrap_servers": self._bootstrap})}
        )
        self._stop = asyncio.Event()

    async def run(self) -> bool:
        """Runs to the end; true when the run is complete, false when it was interrupted and can be resumed.

        Raises `TemperError` when a process cannot be kept alive.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        with self._view:
            async with self._broker():
                if self._fresh and not self._stop.is_set():
                    await self._refuse_a_past()
                if not self._stop.is_set():
                    await self._services()
                if self._progress.ended is not None:
                    await self._summarize()
        return self._progress.ended is not None

    @contextlib.asynccontextmanager
    async def _broker(self) -> AsyncIterator[None]:
        if not self._settings.bus.bootstrap_servers:
            data = self._settings.run_folder / "broker"
            port = self._bootstrap.rsplit(":", 1)[1]
            self._processes.start(BROKER, ["broker", "--port", port, "--data", str(data)])
            # `temper audit` of a run in progress finds the broker here.
            note(self._settings.run_folder / "broker.address", self._bootstrap)
            self._view.line(f"dev broker on {self._bootstrap}, data in {data}")
        try:
            waiting = in_background(lambda: wait_for_broker(self._connected.bus))
            await unless(self._stop, self._or_failure(waiting))
            if not self._stop.is_set():
                await asyncio.to_thread(apply, self._connected)
            yield
        finally:
            # The services before the broker: without one they cannot drain.
            await self._stop_services()
            await self._processes.stop(lambda _: True, SLACK_S)
            (self._settings.run_folder / "broker.address").unlink(missing_ok=True)

    async def _refuse_a_past(self) -> None:
        """A new folder beside an old run of the same name on a lasting broker: neither can go on alone."""
        names = TopicNames(self._settings.bus.namespace)
        reader = LogReader(self._connected, "scheduler", [names.policies, names.control], "earliest", None)
        try:
            async for item in reader.to_end():
                if item.headers.run_id == self._settings.run.name:
                    (self._settings.run_folder / FILE_NAME).unlink(missing_ok=True)
                    raise ConfigError(
                        f"the broker {self._bootstrap} holds a run {self._settings.run.name!r} in namespace "
                        f"{self._settings.bus.namespace!r} whose folder is not {self._settings.run_folder}; "
                        "choose another run.name, or resume it where its folder is"
                    )
        finally:
            await reader.close()

    async def _or_failure(self, work: Coroutine[Any, Any, None]) -> None:
        """Awaits `work`, or raises as soon as a process is given up."""
        task = asyncio.create_task(work)
        watch = asyncio.create_task(self._processes.failure())
        try:
            done, _ = await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
            for finished in done:
                finished.result()
            # No process at all, as before a broker of somebody else's answers, is no failure: the work goes on.
            await task
        finally:
            for other in (task, watch):
                other.cancel()  # harmless to the one that is done

    async def _services(self) -> None:
        counts: dict[Service, int] = {
            "learner": 1,
            "rollout": self._settings.rollout.processes,
            "verifier": self._settings.verifier.processes,
            "scheduler": 1,
        }
        config = str(self._settings.run_folder / FILE_NAME)
        for service, count in counts.items():
            for number in range(count):
                name = f"{service}-{number}"
                self._processes.start(name, [service, "--config", config, "--worker-id", name])
        self._view.line("started " + ", ".join(f"{count} {service}" for service, count in counts.items()))
        await self._or_failure(self._follow())
        await self._stop_services()

    async def _stop_services(self) -> None:
        patience = self._settings.bus.drain_s + SLACK_S
        await self._processes.stop(lambda name: name != BROKER, patience)

    async def _follow(self) -> None:
        """Shows progress until the run has ended or somebody asked to stop."""
        names = TopicNames(self._settings.bus.namespace)
        topics = [names.steps, names.control, names.workers]
        reader = LogReader(self._connected, "scheduler", topics, "earliest", None)
        try:
            if not self._fresh:
                await self._catch_up(reader)
            while not self._stop.is_set() and self._progress.ended is None:
                deliveries = await reader.poll(0.3, 500)
                if deliveries:
                    self._processes.heard(BROKER)
                for delivery in deliveries:
                    if delivery.headers.run_id == self._settings.run.name:
                        self._observe(delivery.message)
                self._view.refresh(self._processes.watched)
        finally:
            await reader.close()
        if self._progress.ended is None:
            self._view.line("stopping: services drain, the same command resumes")

    async def _catch_up(self, reader: LogReader) -> None:
        """What the run did before it was started again: it stands in the scroll-back of that time, so a few lines do."""
        async for delivery in reader.to_end():
            if delivery.headers.run_id == self._settings.run.name:
                self._observe(delivery.message, tell=False)
            if self._stop.is_set():
                return
        for line in self._progress.so_far():
            self._view.line(line)

    def _observe(self, message: Message, *, tell: bool = True) -> None:
        news = self._progress.observe(message)
        if news and tell:
            self._view.line(news)
        if isinstance(message, Heartbeat) and at_work(message):
            self._processes.heard(message.worker_id, message.pid)

    async def _summarize(self) -> None:
        from temper.report.collect import summarize_run

        wall_s = time.monotonic() - self._started_s
        await asyncio.to_thread(summarize_run, self._connected, wall_s)
        self._view.line(f"done in {wall_s:.0f} s: {self._settings.run_folder / 'summary.json'}")


def run_settings(settings: Settings) -> bool:
    """Runs `settings` here unless that run is complete; see `LocalRun.run`."""
    resolved = resolve(settings)
    refuse_mistakes(resolved)  # before the folder is there
    with locked(resolved.run_folder):
        fresh = prepare(resolved)
        if (resolved.run_folder / "summary.json").exists():
            message = f"run {resolved.run.name!r} is complete; for another, change run.name or remove {resolved.run_folder}"
            print(message, file=sys.stderr)
            return True
        return asyncio.run(LocalRun(resolved, fresh=fresh).run())
