"""Where to start in a newly assigned partition.

Invariant: at the group's commit, skipping what its notes call finished; at the beginning where there is no commit
(never at the end: work queued before the first start is work). A commit outside the log is a loss that is reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import structlog

from shared.bus.commits import Committer
from shared.bus.log_cursor import OffsetLostError
from shared.bus.owned import Owned
from shared.bus.tracker import CommitTracker

_log = structlog.get_logger(__name__)
_CALL_MS = 3000


class Placement:
    """Blocking; used by the poll thread."""

    def __init__(self, consumer: Any, commits: Committer) -> None:
        self._consumer = consumer
        self._commits = commits

    def place(self, partitions: Sequence[Owned]) -> list[OffsetLostError]:
        """Set the position of each; what cannot be placed now stays unplaced, and is tried again with the next poll."""
        from kafka.errors import KafkaError

        places = [owned.place for owned in partitions]
        try:
            first = self._consumer.beginning_offsets(places, timeout_ms=_CALL_MS)
            end = self._consumer.end_offsets(places, timeout_ms=_CALL_MS)
            committed = {
                place: self._consumer.committed(place, metadata=True, timeout_ms=_CALL_MS) for place in places
            }
        except (KafkaError, OSError) as error:
            _log.info("starting offsets not readable yet", error_type=type(error).__name__)
            return []
        losses = []
        for owned in partitions:
            place, commit = owned.place, committed[owned.place]
            if commit is None:
                owned.tracker = CommitTracker(first[place])
            elif first[place] <= commit.offset <= end[place]:
                owned.tracker = CommitTracker.resumed(commit.offset, commit.metadata or "")
            else:
                losses.append(_loss(place, commit.offset, first[place], end[place]))
                owned.tracker = CommitTracker(first[place])
            self._consumer.seek(place, owned.tracker.position)
            owned.placed = True
        return losses

    def relocate(self, partitions: Sequence[Owned]) -> list[OffsetLostError]:
        """Positions that fell out of the log while in use go to its beginning. Finished work stays finished."""
        from kafka.errors import KafkaError

        places = [owned.place for owned in partitions]
        try:
            first = self._consumer.beginning_offsets(places, timeout_ms=_CALL_MS)
            end = self._consumer.end_offsets(places, timeout_ms=_CALL_MS)
        except (KafkaError, OSError) as error:
            _log.info("log bounds not readable yet", error_type=type(error).__name__)
            return []
        losses = []
        for owned in partitions:
            place, wanted = owned.place, owned.tracker.position
            if not first[place] <= wanted <= end[place]:
                losses.append(_loss(place, wanted, first[place], end[place]))
                owned.tracker.restart(first[place])
            self._consumer.seek(place, owned.tracker.position)
        return losses

    def ends(self, partitions: Sequence[Owned]) -> dict[Any, int] | None:
        """The end of each log; None when the broker does not answer in time."""
        from kafka.errors import KafkaError

        if not partitions:
            return {}
        try:
            ends: dict[Any, int] = self._consumer.end_offsets(
                [owned.place for owned in partitions], timeout_ms=_CALL_MS
            )
        except (KafkaError, OSError):
            return None
        return ends


def _loss(place: Any, wanted: int, first: int, end: int) -> OffsetLostError:
    return OffsetLostError(place.topic, place.partition, wanted, first, end)
