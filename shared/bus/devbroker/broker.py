"""The state of one broker, without its connections: topics and logs, groups and offsets, identity, faults.

Invariant: between `open` and `close` it is the only user of its data folder.
"""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from shared.bus.devbroker.coordinator import GroupCoordinator
from shared.bus.devbroker.faults import FaultBook
from shared.bus.devbroker.files import FolderLock, replace_file
from shared.bus.devbroker.identity import Identity
from shared.bus.devbroker.journal import Journal
from shared.bus.devbroker.log import sync_file
from shared.bus.devbroker.offsets import GroupStore
from shared.bus.devbroker.settings import DevBrokerSettings, FlushPolicy
from shared.bus.devbroker.topics import TopicCatalogue

LEADER_EPOCH = 0  # one node leads every partition for ever


def wall_clock_ms() -> int:
    """Milliseconds since 1970: what records and retention go by."""
    return int(time.time() * 1000)


def steady_clock_ms() -> int:
    """Milliseconds that never jump: what sessions and rebalances go by."""
    return time.monotonic_ns() // 1_000_000


class Broker:
    """Everything that handlers work on. Belongs to one event loop."""

    def __init__(self, settings: DevBrokerSettings, clock: Callable[[], int] = wall_clock_ms) -> None:
        self.settings = settings
        self.clock = clock
        self.port = settings.port
        self.faults = FaultBook()
        self.topics = TopicCatalogue(settings)
        self.identity = Identity(settings.data_dir / "identity.json")
        self.store = GroupStore(Journal(settings.data_dir / "groups.journal"))
        self.groups = GroupCoordinator(settings, self.store, steady_clock_ms)
        self._lock = FolderLock(settings.data_dir)
        self._clean_mark: Path = settings.data_dir / "clean-stop"

    def open(self) -> None:
        """Take the folder and recover what is in it. Raises DevBrokerError."""
        self._lock.acquire()
        try:
            was_clean = self._clean_mark.exists()
            self._clean_mark.unlink(missing_ok=True)
            self.identity.open()
            self.topics.open(was_clean, self.clock())
            self.store.open()
            self.groups.open()
        except BaseException:
            self._lock.release()
            raise

    def close(self) -> None:
        """Flush, mark the stop as clean, and let go of the folder."""
        self.groups.close()
        if self.settings.flush is not FlushPolicy.NEVER:
            for log in self.topics.all_logs():
                log.flush()
        self.topics.close()
        self.store.close()
        replace_file(self._clean_mark, b"")
        self._lock.release()

    def delete_topic(self, name: str) -> None:
        """Remove a topic and what groups committed for it. Raises Refusal."""
        self.topics.delete(name)
        self.store.forget_topic(name)

    async def flush_for_ever(self) -> None:
        """Under FlushPolicy.INTERVAL: force written data to the disk now and then, off the event loop."""
        while True:
            await asyncio.sleep(self.settings.flush_interval_ms / 1000)
            paths = [path for log in self.topics.all_logs() for path in log.take_unflushed()]
            for path in paths:
                await asyncio.to_thread(sync_file, path)
