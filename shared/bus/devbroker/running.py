"""A broker inside this process, for tests: `with RunningBroker(settings) as broker: …broker.bootstrap…`.

Invariant: entering returns when the port accepts connections; leaving returns when the folder is released.
"""

import asyncio
import threading
from types import TracebackType
from typing import Self

from shared.bus.devbroker.broker import Broker
from shared.bus.devbroker.faults import FaultBook
from shared.bus.devbroker.server import serve_until
from shared.bus.devbroker.settings import DevBrokerError, DevBrokerSettings

START_TIMEOUT_S = 30.0


class RunningBroker:
    """Runs a broker in a thread with an event loop of its own."""

    def __init__(self, settings: DevBrokerSettings) -> None:
        self._settings = settings
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._ready = threading.Event()
        self._broker: Broker | None = None
        self._failure: BaseException | None = None

    @property
    def port(self) -> int:
        return self._running().port

    @property
    def bootstrap(self) -> str:
        """What clients take as bootstrap.servers."""
        return f"{self._settings.host}:{self.port}"

    @property
    def faults(self) -> FaultBook:
        return self._running().faults

    def _running(self) -> Broker:
        if self._broker is None:
            raise DevBrokerError("the broker is not running; use it inside its with block")
        return self._broker

    def start(self) -> Self:
        """Raises DevBrokerError when the broker can't start."""
        self._ready.clear()
        self._failure = None
        self._thread = threading.Thread(target=self._run, name="devbroker", daemon=True)
        self._thread.start()
        if not self._ready.wait(START_TIMEOUT_S):
            raise DevBrokerError(f"the broker did not start within {START_TIMEOUT_S:.0f} s")
        if self._failure is not None:
            self._thread.join()
            raise self._failure
        return self

    def stop(self) -> None:
        """A clean stop; the folder can be opened again afterwards."""
        if self._thread is None:
            return
        if self._loop is not None and self._stop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._thread = self._broker = None
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as failure:  # noqa: BLE001 - handed to the thread that started or stops the broker
            self._failure = failure
            self._ready.set()

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        await serve_until(self._settings, self._stop, self._on_ready)

    def _on_ready(self, broker: Broker) -> None:
        self._broker = broker
        self._ready.set()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
