"""Connections: one place for client options, and for waiting until the broker and its topics are there.

Invariant: nothing connects when a module is imported or an object is made; a client belongs to the process that
first uses it (clients do not survive fork). Waiting ends: with the thing there, or with one line and exit code 3.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from typing import Any

import structlog

from shared.errors import BusError, ConfigError, DependencyError
from shared.settings import BusSettings, Settings

_log = structlog.get_logger(__name__)
EVERYTHING = 1 << 30
"""Records of one poll: see `consumer_options`."""
FETCH_BYTES = 128 * 1024
"""What one fetch brings of a partition. No batch of ours is larger: a broker sends a batch that is only when no other
partition of the fetch has anything (KIP-74), so such a partition would wait until all others are empty."""
_REPEAT_MESSAGE_S = 5.0
_RETRY_S = 0.25


def client_options(bus: BusSettings, client_id: str) -> dict[str, Any]:
    """Options that every Kafka client of this process shares.

    Reconnecting backs off to one second at most: the library's default of 30 s would keep a service idle long
    after the broker is back.
    """
    if not bus.bootstrap_servers:
        raise ConfigError(
            "bus.bootstrap_servers is empty: give host:port, or start the run with `temper up`, which starts a broker"
        )
    return {
        "bootstrap_servers": [
            server.strip() for server in bus.bootstrap_servers.split(",") if server.strip()
        ],
        "client_id": client_id,
        "reconnect_backoff_ms": 50,
        "reconnect_backoff_max_ms": 1000,
        "retry_backoff_ms": 100,
    }


def consumer_options(bus: BusSettings, client_id: str) -> dict[str, Any]:
    """Options of every consumer: explicit commits, explicit starting offsets, bounded fetches.

    The library's own metrics are off here and in the producer: nobody reads them, and they cost a tenth of the rate.
    Every poll takes whatever has been fetched: kafka-python 3.0.12 never returns to a fetched piece that was cut by
    `max_poll_records` when its partition was paused, so a partition that is resumed would stay silent for ever. What
    one poll may bring is bounded by the fetch sizes instead.
    """
    return {
        **client_options(bus, client_id),
        "metrics_enabled": False,
        "enable_auto_commit": False,
        "auto_offset_reset": "none",
        "max_poll_records": EVERYTHING,
        "fetch_max_wait_ms": 100,
        "fetch_max_bytes": 16 * 1024 * 1024,
        "max_partition_fetch_bytes": FETCH_BYTES,
        "bootstrap_timeout_ms": round(bus.connect_timeout_s * 1000),
    }


async def await_broker(bus: BusSettings, deadline_s: float | None = None) -> None:
    """Wait until a broker answers, `bus.connect_timeout_s` at most (or `deadline_s` seconds).

    Says what it waits for every five seconds. Raises `DependencyError` in one line when time is up.
    """
    await asyncio.to_thread(wait_for_broker, bus, deadline_s)


def wait_for_broker(bus: BusSettings, deadline_s: float | None = None) -> None:
    """As `await_broker`, blocking."""
    limit_s = bus.connect_timeout_s if deadline_s is None else deadline_s
    options = client_options(bus, "temper-wait")
    started = time.monotonic()
    said = started
    last = "no answer"
    while True:
        last = _try_servers(options["bootstrap_servers"]) or _try_protocol(options, started + limit_s)
        if not last:
            return
        now = time.monotonic()
        if now - started >= limit_s:
            raise DependencyError(
                f"no Kafka broker at {bus.bootstrap_servers} after {limit_s:g} s ({last}): "
                "start it, or correct bus.bootstrap_servers"
            )
        if now - said >= _REPEAT_MESSAGE_S:
            said = now
            _log.warning("waiting for the broker", servers=bus.bootstrap_servers, reason=last)
        time.sleep(min(_RETRY_S, limit_s))


async def await_topics(settings: Settings, deadline_s: float | None = None) -> None:
    """Wait until every topic of the manifest exists with its partitions.

    Raises `DependencyError` naming the missing ones when time is up, `BusError` at once for a wrong partition count.
    """
    from shared.bus import admin

    limit_s = settings.bus.connect_timeout_s if deadline_s is None else deadline_s
    started = time.monotonic()
    said = started
    while True:
        missing = [item.name for item in await asyncio.to_thread(admin.check, settings) if item.missing]
        if not missing:
            return
        now = time.monotonic()
        if now - started >= limit_s:
            raise DependencyError(
                f"{len(missing)} topics are missing after {limit_s:g} s ({', '.join(missing[:3])}"
                f"{', …' if len(missing) > 3 else ''}): run `temper topics apply`"
            )
        if now - said >= _REPEAT_MESSAGE_S:
            said = now
            _log.warning("waiting for topics", missing=len(missing), first=missing[0])
        await asyncio.sleep(_RETRY_S)


def _try_servers(servers: list[str]) -> str:
    """Why no server accepts a connection; empty when one does."""
    reason = "no server given"
    for server in servers:
        host, _, port = server.rpartition(":")
        try:
            with contextlib.closing(socket.create_connection((host.strip("[]"), int(port)), timeout=2.0)):
                return ""
        except OSError as error:
            reason = f"{server}: {error.strerror or error}"
    return reason


def _try_protocol(options: dict[str, Any], until: float) -> str:
    """Why the server does not speak Kafka yet; empty when it does."""
    from kafka import KafkaAdminClient
    from kafka.errors import KafkaError

    budget_ms = max(1000, min(5000, round((until - time.monotonic()) * 1000)))
    try:
        with contextlib.closing(KafkaAdminClient(**options, bootstrap_timeout_ms=budget_ms)) as client:
            client.describe_cluster()
    except (KafkaError, OSError) as error:
        return f"it accepts connections but does not answer: {type(error).__name__}"
    return ""


def bus_error(action: str, error: BaseException) -> BusError:
    """A library error as ours, in one line."""
    name = type(error).__name__
    # kafka-python's errors begin their own text with their name.
    text = next(iter(str(error).strip().splitlines()), "").removeprefix(name).lstrip(": ")
    return BusError(f"{action}: {name}{': ' + text if text else ''}")
