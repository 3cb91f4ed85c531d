"""Where the records of a run are: its configuration, and a broker that serves them.

Invariant: an audit reads and leaves everything as it found it. A dev broker that it has to start over the run's data
listens on a free port, deletes nothing, and ends with the audit.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from shared.errors import ConfigError
from shared.settings import Settings, load_settings

if TYPE_CHECKING:
    from shared.bus.devbroker.running import RunningBroker

ADDRESS = "broker.address"
"""File in a run's folder with `host:port` of the broker that `temper up` runs at the moment."""
REPLAY = "replay.json"
"""File that only the folder of a replay has."""
_NEVER_MS = 10 * 365 * 86_400_000


def run_settings(folder: Path) -> Settings:
    """The configuration that a run was started with, with its paths at `folder` (a run's folder may be moved).

    Raises `ConfigError` where the folder holds no run.
    """
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such run folder; give the folder that holds the run's run.toml")
    if not (folder / "run.toml").is_file():
        raise ConfigError(f"{folder} holds no run.toml: it is not the folder of a run")
    settings = load_settings(folder / "run.toml")
    here = folder.absolute()
    if here.name != settings.run.name:
        raise ConfigError(
            f"{folder} holds the run {settings.run.name!r}: rename the folder to {settings.run.name!r}, its run_id"
        )
    moved = settings.model_copy(update={"run": settings.run.model_copy(update={"folder": str(here.parent)})})
    if settings.storage_uri == f"file://{settings.run_folder / 'objects'}":
        moved = moved.model_copy(update={"storage": moved.storage.model_copy(update={"uri": ""})})
    return moved


@contextlib.contextmanager
def connected(settings: Settings) -> Iterator[Settings]:
    """The same settings with a broker that answers: the one they name, the one that runs, or one started here.

    The one they name is passed over where it does not answer and the run has a dev broker's data of its own: its
    address is of a `temper up` that has ended. Raises `ConfigError` for a replay, and where there is no broker and no
    data to start one over.
    """
    if (settings.run_folder / REPLAY).exists():
        raise ConfigError(
            f"{settings.run_folder} is a replay of another run and has no topics of its own: give that run's folder"
        )
    data = settings.run_folder / "broker"
    if settings.bus.bootstrap_servers and (not data.is_dir() or _answers(settings.bus.bootstrap_servers)):
        yield settings
        return
    running = _running_address(settings.run_folder)
    if running:
        yield _at(settings, running)
        return
    if not data.is_dir():
        raise ConfigError(
            f"{data} does not exist and bus.bootstrap_servers is empty: "
            "name the run's broker in TEMPER_BUS__BOOTSTRAP_SERVERS"
        )
    broker = _own_broker(data)
    try:
        yield _at(settings, broker.bootstrap)
    finally:
        broker.stop()


def _own_broker(data: Path) -> RunningBroker:
    from shared.bus.devbroker.running import RunningBroker
    from shared.bus.devbroker.settings import DevBrokerError, DevBrokerSettings

    try:
        return RunningBroker(DevBrokerSettings(data_dir=data, check_interval_ms=_NEVER_MS)).start()
    except DevBrokerError as error:
        raise ConfigError(
            f"{error}; of a run that is at work, name the broker in TEMPER_BUS__BOOTSTRAP_SERVERS"
        ) from error


def _at(settings: Settings, bootstrap: str) -> Settings:
    bus = settings.bus.model_copy(update={"bootstrap_servers": bootstrap})
    return settings.model_copy(update={"bus": bus})


def _running_address(folder: Path) -> str:
    """Empty where no broker of `temper up` answers."""
    try:
        address = (folder / ADDRESS).read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return ""
    return address if _answers(address) else ""


def _answers(servers: str) -> bool:
    """Whether one of `host:port,…` accepts a connection within two seconds."""
    for server in servers.split(","):
        host, _, port = server.strip().rpartition(":")
        with contextlib.suppress(OSError, ValueError, OverflowError):
            socket.create_connection((host.strip("[]"), int(port)), timeout=2).close()
            return True
    return False
