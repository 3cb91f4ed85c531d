"""Control: how a running service learns that its run has ended or that groups were given up.

Invariant: `ended` is set once an `end` of this run has been read, whenever it was written (the topic is compacted
and read from its beginning); messages of other runs change nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Iterable
from typing import Any

import structlog

from shared.bus.reader import LogReader
from shared.bus.topics import TopicNames
from shared.contracts.control import Control, Evaluation
from shared.errors import TemperError
from shared.settings import Settings

_log = structlog.get_logger(__name__)
_POLL_S = 0.5
_BACKOFF_S = 1.0


class ControlWatcher:
    """Run `watch()` as a task; wait on `ended`, look into `abandoned`."""

    def __init__(self, settings: Settings, service: str) -> None:
        self._settings = settings
        self._service = service
        self.ended = asyncio.Event()
        self.reason = ""
        """Of the end, in words."""
        self.abandoned: set[str] = set()
        """Group ids that nobody needs any more."""
        self.domains: dict[str, Control] = {}
        """The newest word, hold or lift, on every domain that was ever held back."""
        self.evaluations: dict[str, Evaluation] = {}
        """Those that are complete, by name."""
        self.resumed = -1
        """The newest step after which a paused learner was told to go on."""
        self.caught_up = asyncio.Event()
        """Set once everything that was on the topic at the start has been read."""

    async def watch(self, stop: asyncio.Event | None = None) -> None:
        """Follow the topic until `stop` is set or the task is cancelled. A broker that is away is waited for."""
        topic = TopicNames(self._settings.bus.namespace).control
        reader = LogReader(self._settings, self._service, [topic])
        try:
            while stop is None or not stop.is_set():
                await self._read(reader)
        finally:
            with contextlib.suppress(TemperError):
                await reader.close()

    async def known(self, leave: asyncio.Event) -> None:
        """Returns once it is known whether the run has ended and which groups were given up, or `leave` is set."""
        await _first(leave.wait(), self.caught_up.wait())

    async def over(self, stop: asyncio.Event, beside: Iterable[asyncio.Task[None]] = ()) -> None:
        """Returns when somebody asks, when the run ends, or when a task of `beside` is done (it broke)."""
        await _first(stop.wait(), self.ended.wait(), beside=beside)

    def observe(self, message: object) -> None:
        """Take one message of the topic into account."""
        if isinstance(message, Evaluation) and message.run_id == self._settings.run.name:
            self.evaluations[message.name] = message
        if not isinstance(message, Control) or message.run_id != self._settings.run.name:
            return
        if message.kind == "end":
            self.reason = message.reason
            self.ended.set()
        elif message.kind == "resume":
            self.resumed = max(self.resumed, message.step)
        elif message.domain:
            self.domains[message.domain] = message
        else:
            self.abandoned.update(message.groups)

    async def _read(self, reader: LogReader) -> None:
        try:
            for delivery in await reader.poll(_POLL_S):
                self.observe(delivery.message)
        except TemperError as error:
            _log.warning("control topic not readable", error=str(error))
            await asyncio.sleep(_BACKOFF_S)
            return
        if reader.at_end():
            self.caught_up.set()


async def _first(*waits: Coroutine[Any, Any, Any], beside: Iterable[asyncio.Task[None]] = ()) -> None:
    """Returns when one is done; `waits` are cancelled then, tasks of `beside` go on."""
    tasks = {asyncio.ensure_future(wait) for wait in waits}
    try:
        await asyncio.wait({*tasks, *beside}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
