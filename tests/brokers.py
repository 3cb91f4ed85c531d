"""Brokers for tests: the dev broker and Apache Kafka as processes that can be stopped, killed and frozen.

`KAFKA_HOME` names an Apache Kafka whose `bin/start --port N --data DIR [key=value …]` runs one node;
`KAFKA_BOOTSTRAP_SERVERS` a Kafka that is there already (it can be used, not killed).
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shared.bus import admin
from shared.bus.connect import wait_for_broker
from shared.errors import DependencyError
from shared.settings import BusSettings, Settings, parse_settings

KINDS = ("devbroker", "kafka")
NO_KAFKA = "not run on Apache Kafka: set KAFKA_HOME or KAFKA_BOOTSTRAP_SERVERS"
NO_KAFKA_PROCESS = "not run on Apache Kafka: set KAFKA_HOME (a broker given by address cannot be killed)"
_REPOSITORY = Path(__file__).resolve().parent.parent
_START_S = 60.0


class Broker:
    """One broker. `bootstrap` is what clients take; the data folder outlives `stop` and `kill`."""

    def __init__(self, kind: str, data: Path, port: int | None = None, bootstrap: str = "") -> None:
        self.kind = kind
        self.data = data
        self.port = free_port_pair() if port is None and not bootstrap else port
        self.bootstrap = bootstrap or f"127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Broker:
        """Returns when it answers. A process that ends before that is started again, twice at most.

        (Apache Kafka's own formatting fails for one random cluster id in 64, those that begin with a dash.)
        """
        self.data.mkdir(parents=True, exist_ok=True)
        until = time.monotonic() + _START_S
        starts = 0
        while True:
            if self._process is None or self._process.poll() is not None:
                starts += 1
                assert starts <= 3, f"{self.kind} ends as soon as it is started: {self._log_tail()}"
                self._spawn()
            try:
                wait_for_broker(BusSettings(bootstrap_servers=self.bootstrap), 2.0)
            except DependencyError:
                if time.monotonic() > until:
                    self.kill()
                    raise
            else:
                return self

    def _spawn(self) -> None:
        with self._log_path().open("ab") as log:
            self._process = subprocess.Popen(
                self._command(),
                cwd=_REPOSITORY,
                stdout=log,
                stderr=log,
                start_new_session=True,
                # The first compiler and the plain collector only: a broker of a few seconds starts sooner so.
                env={
                    **os.environ,
                    "KAFKA_HEAP_OPTS": "-Xmx384m -XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
                },
            )

    def _log_path(self) -> Path:
        return self.data.parent / f"{self.data.name}.log"

    def _log_tail(self) -> str:
        return " | ".join(self._log_path().read_text(errors="replace").splitlines()[-3:])

    def stop(self) -> None:
        """A clean stop."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """A crash: SIGKILL."""
        self._end(signal.SIGKILL)

    def freeze(self) -> None:
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        assert self._process is not None
        os.killpg(self._process.pid, number)

    def _end(self, number: int) -> None:
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            self._signal(number)
            if number == signal.SIGTERM:
                self._signal(signal.SIGCONT)
        try:
            self._process.wait(15)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)
            self._process.wait(15)
        self._process = None

    def _command(self) -> list[str]:
        if self.kind == "devbroker":
            return [
                sys.executable,
                "-m",
                "shared.bus.devbroker",
                "--port",
                str(self.port),
                "--data",
                str(self.data),
            ]
        return [
            str(Path(os.environ["KAFKA_HOME"]).absolute() / "bin" / "start"),
            "--port",
            str(self.port),
            "--data",
            str(self.data),
            "group.initial.rebalance.delay.ms=0",
            "group.min.session.timeout.ms=1000",
            "log.retention.check.interval.ms=500",
            "log.segment.delete.delay.ms=100",
        ]


@contextlib.contextmanager
def running_broker(kind: str, folder: Path) -> Iterator[Broker]:
    """A broker for the session: a process of ours, or the Kafka that the environment names."""
    given = os.environ.get("KAFKA_BOOTSTRAP_SERVERS", "")
    if kind == "kafka" and "KAFKA_HOME" not in os.environ:
        if not given:
            pytest.skip(NO_KAFKA)
        yield Broker(kind, folder, bootstrap=given)
        return
    broker = Broker(kind, folder / kind)
    broker.start()
    try:
        yield broker
    finally:
        broker.kill()


def free_port_pair() -> int:
    """A port that is free, and whose next one is too (Apache Kafka's controller takes it)."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port = int(first.getsockname()[1])
            with contextlib.suppress(OSError):
                second.bind(("127.0.0.1", port + 1))
                return port


def settings_for(broker: Any, folder: Path, *, topics: bool = True, **overrides: Any) -> Settings:
    """Settings of a small run on `broker` (anything with `.bootstrap`), in a namespace of its own.

    `overrides`: sections as dictionaries (merged into the defaults) or lists (replacing them). `topics`: whether to
    create the topics of its manifest.
    """
    document: dict[str, Any] = {
        "run": {"name": f"run-{uuid.uuid4().hex[:8]}", "folder": str(folder / "runs")},
        "bus": {
            "bootstrap_servers": broker.bootstrap,
            "namespace": f"t{uuid.uuid4().hex[:10]}",
            "partitions": 2,
            "session_timeout_ms": 6000,
            "retry_delays_s": [0.2, 0.5],
            "max_attempts": 3,
            "drain_s": 5.0,
            "connect_timeout_s": 20.0,
        },
        "model": {"path": str(folder / "model")},
        "telemetry": {"traces": "none", "heartbeat_s": 0.2},
        "domains": [{"name": "arithmetic"}],
        "stages": [{"kind": "rl", "steps": 1, "groups_per_step": 2, "group_size": 2}],
    }
    for name, value in overrides.items():
        document[name] = {**document.get(name, {}), **value} if isinstance(value, dict) else value
    settings = parse_settings(document, source="test")
    if topics:
        admin.apply(settings)
    return settings


def eventually(condition: Any, timeout_s: float = 10.0, what: str = "the condition") -> None:
    """Wait until `condition()` holds; fails naming `what` when it does not in time."""
    until = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < until, f"{what} did not come true within {timeout_s:g} s"
        time.sleep(0.02)
