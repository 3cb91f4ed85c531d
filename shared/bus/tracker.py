"""What of a partition is finished: the contiguous prefix, and what is finished ahead of it.

Invariant: `prefix` is never above an unfinished record, in whatever order records finish; and an offset that is
reported as finished ahead was finished. Losing a note of finished work costs a repetition, never a record.
"""

from __future__ import annotations

import bisect
import collections
from collections.abc import Iterable, Sequence

from shared.bus.commit_notes import Range, decode_ahead, encode_ahead


class CommitTracker:
    """One partition during one assignment. Offsets are taken in rising order, and may finish in any."""

    def __init__(self, position: int, ahead: Sequence[Range] = ()) -> None:
        """`position`: the first offset that may be unfinished; `ahead`: ranges above it that are finished."""
        self._order: collections.deque[int] = collections.deque()
        self._finished: set[int] = set()
        self._next = position
        self._known = [span for span in ahead if span.end > position]
        self._committed: tuple[int, str] = (position, encode_ahead(position, self._known))

    @classmethod
    def resumed(cls, committed: int, metadata: str) -> CommitTracker:
        """From a committed offset and its metadata; metadata that cannot be read counts as none."""
        return cls(committed, decode_ahead(committed, metadata))

    def take(self, offset: int) -> bool:
        """Note a fetched record; False when it was finished before and must not be handled again.

        An offset below what was already taken was re-fetched: it is handled only if nobody has it.
        """
        if offset < self._next:
            return False
        self._next = offset + 1
        self._order.append(offset)
        if self._is_known(offset):
            self._finished.add(offset)
            return False
        return True

    def restart(self, offset: int) -> None:
        """The log no longer holds `position`: go on at `offset`, with nothing outstanding before it."""
        self._order.clear()
        self._finished.clear()
        self._known = [span for span in self._known if offset < span.end <= self._next]
        self._next = offset

    def finish(self, offset: int) -> None:
        """A handled record is finished. Finishing twice, or below the prefix, changes nothing."""
        if self._order and self._order[0] <= offset < self._next:
            self._finished.add(offset)

    @property
    def position(self) -> int:
        """The next offset to take."""
        return self._next

    @property
    def outstanding(self) -> int:
        """Records taken and not yet inside the prefix."""
        self._advance()
        return len(self._order)

    @property
    def prefix(self) -> int:
        """The offset to commit: everything below it is finished."""
        self._advance()
        return self._order[0] if self._order else self._next

    def ahead(self) -> list[Range]:
        """What is finished above the prefix, as disjoint rising ranges."""
        base = self.prefix
        spans = [Range(offset, offset + 1) for offset in self._finished]
        spans += [Range(max(span.start, base), span.end) for span in self._known if span.end > base]
        return merged(spans)

    def to_commit(self) -> tuple[int, str] | None:
        """(offset, metadata) when it differs from what is committed, else None."""
        state = (self.prefix, encode_ahead(self.prefix, self.ahead()))
        return state if state != self._committed else None

    def committed(self, state: tuple[int, str]) -> None:
        """The broker has accepted `state`."""
        self._committed = state

    def _advance(self) -> None:
        order, finished = self._order, self._finished
        while order and order[0] in finished:
            finished.discard(order.popleft())

    def _is_known(self, offset: int) -> bool:
        index = bisect.bisect_right(self._known, offset, key=lambda span: span.start) - 1
        return index >= 0 and offset < self._known[index].end


def merged(spans: Iterable[Range]) -> list[Range]:
    """Disjoint rising ranges that cover the same offsets."""
    out: list[Range] = []
    for span in sorted(spans):
        if out and span.start <= out[-1].end:
            out[-1] = Range(out[-1].start, max(out[-1].end, span.end))
        else:
            out.append(span)
    return out
