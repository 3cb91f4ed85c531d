"""Committing offsets with notes of what is finished ahead.

Invariant: only what trackers of owned partitions report is committed; one commit is on its way at a time, so commits
arrive in order; a failed one changes nothing here and is made again with newer numbers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import structlog

from shared.bus.owned import Owned

_log = structlog.get_logger(__name__)
_EVERY_S = 0.5
_LAST_MS = 5000


class Committer:
    """Used by the poll thread; `offsets` and `acknowledge` also by the rebalance listener, while that thread waits."""

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._at = 0.0
        self._on_its_way: Any = None
        self._plain = False
        """The broker refuses notes (its `offset.metadata.max.bytes` is smaller): commit without."""

    def maybe_commit(self, partitions: Iterable[Owned], now: float) -> None:
        """Start a commit of what has changed, every half second at most."""
        if now - self._at < _EVERY_S:
            return
        if self._on_its_way is not None and not self._on_its_way.is_done:
            return
        self._at = now
        states = self.offsets(partitions)
        if states:
            self._on_its_way = self._consumer.commit_async(
                self.to_kafka(states), callback=lambda _, outcome: self._answered(states, outcome)
            )

    def commit_now(self, partitions: Iterable[Owned]) -> None:
        """Commit and wait; raises the library's error when it does not succeed within five seconds."""
        states = self.offsets(partitions)
        if states:
            self._consumer.commit(self.to_kafka(states), timeout_ms=_LAST_MS)
            self.acknowledge(states)

    def offsets(self, partitions: Iterable[Owned]) -> dict[Owned, tuple[int, str]]:
        """What there is to commit."""
        out = {}
        for owned in partitions:
            if owned.placed and owned.active:
                state = owned.tracker.to_commit()
                if state is not None:
                    out[owned] = state
        return out

    def to_kafka(self, states: dict[Owned, tuple[int, str]]) -> dict[Any, Any]:
        from kafka.structs import OffsetAndMetadata

        return {
            owned.place: OffsetAndMetadata(offset, "" if self._plain else notes, -1)
            for owned, (offset, notes) in states.items()
        }

    def acknowledge(self, states: dict[Owned, tuple[int, str]]) -> None:
        for owned, state in states.items():
            owned.tracker.committed(state)

    def _answered(self, states: dict[Owned, tuple[int, str]], outcome: Any) -> None:
        """In the poll thread, from within a later poll."""
        from kafka.errors import OffsetMetadataTooLargeError

        if not isinstance(outcome, BaseException):
            self.acknowledge(states)
        elif isinstance(outcome, OffsetMetadataTooLargeError):
            self._plain = True
            _log.warning(
                "commit notes refused: finished-ahead records may be handled again after a restart",
                mend="raise the broker's offset.metadata.max.bytes to 4096",
            )
        else:
            _log.info("commit not accepted, trying again", error_type=type(outcome).__name__)
