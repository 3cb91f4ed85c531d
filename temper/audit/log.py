"""Topics read once, from their first record to the end they had when reading began.

Invariant: every record that the broker has at the start is returned exactly once, in partition order, readable or
not; what it no longer has is counted, never passed over in silence.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Iterator, Sequence
from types import TracebackType

from shared.bus import claims
from shared.bus.delivery import RawRecord
from shared.bus.log_cursor import LogCursor
from shared.bus.records import header
from shared.contracts.base import Message
from shared.contracts.codec import decode
from shared.errors import BusError
from shared.settings import Settings
from shared.storage import ObjectStore

_STILL_S = 15.0
"""Without a record for so long the broker counts as stuck."""


class TopicLog:
    """Blocking; use as a context manager."""

    def __init__(self, settings: Settings, topics: Sequence[str], store: ObjectStore) -> None:
        """`topics` must exist. Raises `BusError` where one does not, or the broker does not answer."""
        self._cursor = LogCursor(settings.bus, "temper-tool", tuple(topics), "earliest")
        self._store = store
        self._run = settings.run.name
        self.first: dict[tuple[str, int], int] = {}
        """First offset of every partition: above 0, earlier records are gone."""

    def __enter__(self) -> TopicLog:
        try:
            self._cursor.open()
        except BaseException:
            self._cursor.close()
            raise
        self.first = self._cursor.positions()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._cursor.close()

    def records(self) -> Iterator[RawRecord]:
        """Raises `BusError` where the broker stops answering before the end, or drops records while they are read."""
        ends = dict(self._cursor.ends)
        moved = time.monotonic()
        while any(offset < ends[place] for place, offset in self._cursor.positions().items()):
            found = self._cursor.fetch(0.2)
            if self._cursor.losses:
                raise self._cursor.losses.pop(0)
            if found:
                moved = time.monotonic()
            elif time.monotonic() - moved > _STILL_S:
                raise BusError(
                    f"the logs stand still for {_STILL_S:g} s before their end: is the broker well? try again"
                )
            for record in found:
                if record.offset < ends[record.topic, record.partition]:
                    yield record

    def message(self, record: RawRecord) -> Message:
        """Raises `ContractError` for a record that cannot be read, `StorageError` where its body is not there."""
        return decode(header(record.headers, "schema"), self.body(record))

    def body(self, record: RawRecord) -> bytes:
        """Raises `ContractError` for a ticket that cannot be read, `StorageError` where its body is not there."""
        ticket = header(record.headers, "claim")
        return (self._parked(ticket) if ticket else record.value) or b""

    def _parked(self, ticket: str) -> bytes:
        """A body is found by its digest in the run's own store first: a copied run's tickets name the old place."""
        with contextlib.suppress(ValueError, TypeError, AttributeError, RecursionError):
            digest = str(json.loads(ticket).get("sha256"))
            if re.fullmatch(r"[0-9a-f]{64}", digest):
                key = claims.key_of(self._run, digest)
                if self._store.exists(key):
                    return self._store.get_bytes(self._store.uri_of(key), digest)
        return claims.redeem(self._store, ticket)
