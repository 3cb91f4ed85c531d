"""The broker as a process: listens, serves connections, runs the chores, stops on SIGTERM.

Invariant: when `serve` returns, every file is closed and the folder is marked as cleanly stopped.
"""

import asyncio
import resource
import signal
from collections.abc import Callable

import structlog

from shared.bus.devbroker.broker import Broker
from shared.bus.devbroker.chores import Chores
from shared.bus.devbroker.connection import Connection
from shared.bus.devbroker.settings import DevBrokerError, DevBrokerSettings, FlushPolicy

NOTICE = (
    "This is a development broker: one node, no replication, no security. Use Apache Kafka in production."
)
_STREAM_BYTES = 4 * 1024 * 1024


class Server:
    """Listens for a broker that is open."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._background: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Bind the port and start the chores. Raises DevBrokerError when the port can't be had."""
        settings = self.broker.settings
        try:
            self._server = await asyncio.start_server(
                self._on_connection, settings.host, settings.port, limit=_STREAM_BYTES
            )
        except OSError as fault:
            raise DevBrokerError(
                f"cannot listen on {settings.host}:{settings.port}: {fault.strerror}; "
                "stop what uses the port or choose another with --port"
            ) from fault
        self.broker.port = self._server.sockets[0].getsockname()[1]
        chores = Chores(self.broker)
        self._background.append(asyncio.create_task(chores.run_for_ever()))
        if settings.flush is FlushPolicy.INTERVAL:
            self._background.append(asyncio.create_task(self.broker.flush_for_ever()))

    def _on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(Connection(self.broker, reader, writer).serve())
        self._connections.add(task)
        task.add_done_callback(self._connection_done)

    def _connection_done(self, task: asyncio.Task[None]) -> None:
        self._connections.discard(task)
        if not task.cancelled() and task.exception() is not None:
            structlog.get_logger().error("devbroker.connection_failed", exc_info=task.exception())

    async def stop(self) -> None:
        """Close the port and every connection; answers that were not sent are not sent any more."""
        if self._server is not None:
            self._server.close()
        tasks = [*self._background, *self._connections]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await (
            asyncio.get_running_loop().shutdown_default_executor()
        )  # a flush or compaction that is under way


async def serve_until(
    settings: DevBrokerSettings, stop: asyncio.Event, on_ready: Callable[[Broker], None]
) -> None:
    """Run a broker until `stop` is set. `on_ready` is called once the port accepts connections."""
    broker = Broker(settings)
    broker.open()
    server = Server(broker)
    try:
        await server.start()
        on_ready(broker)
        await stop.wait()
    finally:
        await server.stop()
        broker.close()


def log_ready(broker: Broker) -> None:
    """Say where the broker listens, and what it is not for."""
    address = f"{broker.settings.host}:{broker.port}"
    structlog.get_logger().warning(
        "devbroker.ready", address=address, data=str(broker.settings.data_dir), notice=NOTICE
    )


def serve(settings: DevBrokerSettings, on_ready: Callable[[Broker], None] = log_ready) -> None:
    """Run a broker in this process until SIGTERM or SIGINT. Raises DevBrokerError when it can't start."""
    _raise_descriptor_limit()

    async def main() -> None:
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        await serve_until(settings, stop, on_ready)

    asyncio.run(main())


def _raise_descriptor_limit() -> None:
    """Every partition that is written to holds one descriptor; take as many as the system lets us."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
