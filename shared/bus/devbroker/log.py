"""The log of one partition: segments, appends, reads, offsets by time, and what may be deleted.

Invariant: offsets rise without repeats; a record that was acknowledged was first written to the kernel; readers see
nothing below `start_offset` and nothing at or above `end_offset`.
"""

import os
from bisect import bisect_right
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import structlog

from shared.bus.devbroker.batches import (
    HEADER_BYTES,
    BatchHeader,
    Buffer,
    can_decompress,
    check_produced,
    iter_records,
    read_header,
    stamped,
)
from shared.bus.devbroker.codes import Code, Refusal
from shared.bus.devbroker.files import replace_file, sync_folder
from shared.bus.devbroker.producers import ProducerLedger
from shared.bus.devbroker.segment import NO_TIMESTAMP, SUFFIX, Segment, segment_path
from shared.bus.devbroker.topic_configs import LogPolicy

_START_OFFSET_FILE = "start-offset"


class Appended(NamedTuple):
    """Where a batch lies. `append_time` is -1 under CreateTime."""

    base_offset: int
    append_time: int


class TimedOffset(NamedTuple):
    """An offset that was looked up by time, with the timestamp of its record."""

    offset: int
    timestamp: int


class PartitionLog:
    """One partition on disk. Not thread-safe: it belongs to the broker's event loop."""

    def __init__(self, folder: Path, policy: LogPolicy) -> None:
        self.folder = folder
        self.policy = policy
        self.start_offset = 0
        self.segments: list[Segment] = []
        self.producers = ProducerLedger()
        self.listeners: set[Callable[[], None]] = set()
        self.deleted = False  # set when its topic is deleted, for those who still hold it
        self._unflushed: set[Path] = set()

    # -- opening --------------------------------------------------------------------------------------------

    def open(self, was_clean: bool, now_ms: int) -> None:
        """Load or create the folder. After an unclean stop every CRC is checked, otherwise the last segment's."""
        log = structlog.get_logger()
        self.folder.mkdir(parents=True, exist_ok=True)
        paths = sorted(self.folder.glob(f"*{SUFFIX}"))
        for leftover in self.folder.glob("*.cleaned"):
            leftover.unlink()  # a compaction that was stopped before its result was put in place
        for index, path in enumerate(paths):
            segment = Segment(path, int(path.stem))
            if self.segments and segment.base_offset < self.end_offset:
                path.unlink()  # compaction had merged it into the one before when it was stopped
                continue
            for header in segment.recover(check_crc=not was_clean or index == len(paths) - 1):
                self.producers.record(header, now_ms)
            torn = segment.cut()
            if torn:
                log.warning(
                    "devbroker.torn_tail_cut",
                    segment=str(path),
                    bytes_cut=torn,
                    next_offset=segment.next_offset,
                )
            self.segments.append(segment)
        if not self.segments:
            self._add_segment(0)
        stored = self.folder / _START_OFFSET_FILE
        persisted = int(stored.read_text()) if stored.exists() else 0
        self.start_offset = min(max(persisted, self.segments[0].base_offset), self.end_offset)

    def close(self) -> None:
        for segment in self.segments:
            segment.close()

    @property
    def end_offset(self) -> int:
        """The offset of the next record; the high watermark too, since there is one replica."""
        return self.segments[-1].next_offset

    @property
    def size(self) -> int:
        return sum(segment.size for segment in self.segments)

    @property
    def active(self) -> Segment:
        return self.segments[-1]

    # -- appending ------------------------------------------------------------------------------------------

    def append(self, records: Buffer, now_ms: int) -> Appended:
        """Check and write one batch; a repeated idempotent batch is answered with its first offsets.

        Raises Refusal with the code for the client, among them KAFKA_STORAGE_ERROR when the disk refuses.
        """
        header = check_produced(records, self.policy.max_message_bytes)
        self._check_timestamp(header, now_ms)
        if self.policy.compact:
            self._check_keys(records, header)
        earlier = self.producers.check(header)
        if earlier is not None:
            return Appended(earlier.base_offset, earlier.timestamp if self.policy.log_append_time else -1)
        self._roll_if_due(header.size, now_ms)
        append_time = now_ms if self.policy.log_append_time else None
        head, final = stamped(records, self.end_offset, append_time)
        try:
            self.active.append(head, memoryview(records)[HEADER_BYTES:], final, now_ms)
        except OSError as fault:
            message = (
                f"cannot write {self.active.path}: {fault.strerror}; free space or choose another data folder"
            )
            raise Refusal(Code.KAFKA_STORAGE_ERROR, message) from fault
        self.producers.record(final, now_ms)
        self._unflushed.add(self.active.path)
        for wake in tuple(self.listeners):
            wake()
        return Appended(final.base_offset, -1 if append_time is None else append_time)

    def _check_timestamp(self, header: BatchHeader, now_ms: int) -> None:
        policy = self.policy
        if policy.log_append_time or header.max_timestamp == NO_TIMESTAMP:
            return
        ahead, behind = header.max_timestamp - now_ms, now_ms - header.base_timestamp
        if ahead > policy.timestamp_after_max_ms or behind > policy.timestamp_before_max_ms:
            raise Refusal(
                Code.INVALID_TIMESTAMP, f"timestamp {header.max_timestamp} is too far from the clock {now_ms}"
            )

    def _check_keys(self, records: Buffer, header: BatchHeader) -> None:
        if can_decompress(header.codec) and any(record.key is None for record in iter_records(records)):
            raise Refusal(Code.INVALID_RECORD, "a compacted topic takes no record without a key")

    def _roll_if_due(self, incoming: int, now_ms: int) -> None:
        active = self.active
        if not active.size:
            return
        started = active.first_append_ms if active.first_append_ms is not None else now_ms
        if active.size + incoming > self.policy.segment_bytes or now_ms - started >= self.policy.segment_ms:
            self.roll()

    def roll(self) -> None:
        """Close the active segment and start the next one."""
        self.active.close()
        self._add_segment(self.end_offset)

    def _add_segment(self, base_offset: int) -> None:
        path = segment_path(self.folder, base_offset)
        path.touch()
        self.segments.append(Segment(path, base_offset))

    # -- reading --------------------------------------------------------------------------------------------

    def check_in_range(self, offset: int) -> None:
        if self.deleted:
            raise Refusal(Code.UNKNOWN_TOPIC_OR_PARTITION, f"the topic of {self.folder} was deleted")
        if not self.start_offset <= offset <= self.end_offset:
            raise Refusal(
                Code.OFFSET_OUT_OF_RANGE, f"offset {offset} is outside {self.start_offset}..{self.end_offset}"
            )

    def _segment_at(self, offset: int) -> int:
        at = max(bisect_right(self.segments, offset, key=lambda segment: segment.base_offset) - 1, 0)
        while at + 1 < len(self.segments) and self.segments[at].next_offset <= offset:
            at += 1  # compaction may leave a gap between two segments
        return at

    def read(self, offset: int, max_bytes: int, at_least_one: bool = True) -> bytes:
        """Whole batches from the one that holds `offset`. Raises Refusal(OFFSET_OUT_OF_RANGE)."""
        self.check_in_range(offset)
        for segment in self.segments[self._segment_at(offset) :]:
            position = segment.position_of(offset)
            if position < segment.size:
                return segment.read(position, max_bytes, at_least_one)
        return b""

    def bytes_from(self, offset: int) -> int:
        """How many bytes a reader at `offset` has before it. Raises Refusal(OFFSET_OUT_OF_RANGE)."""
        self.check_in_range(offset)
        if offset == self.end_offset:
            return 0
        at = self._segment_at(offset)
        segment = self.segments[at]
        later = sum(other.size for other in self.segments[at + 1 :])
        return segment.size - segment.position_of(offset) + later

    def offset_for_time(self, timestamp: int) -> TimedOffset | None:
        """The first record at or after `timestamp` (milliseconds), or None."""
        for segment in self.segments:
            position = segment.first_at_or_after(timestamp)
            while position is not None and position < segment.size:
                batch = segment.read(position, 0, at_least_one=True)
                header = read_header(batch)
                found = self._record_at_time(batch, header, timestamp)
                if found is not None:
                    return found
                position += header.size
        return None

    def _record_at_time(self, batch: bytes, header: BatchHeader, timestamp: int) -> TimedOffset | None:
        if header.max_timestamp < timestamp or header.last_offset < self.start_offset:
            return None
        if not can_decompress(header.codec):
            return TimedOffset(max(header.base_offset, self.start_offset), header.max_timestamp)
        for record in iter_records(batch):
            if record.timestamp >= timestamp and record.offset >= self.start_offset:
                return TimedOffset(record.offset, record.timestamp)
        return None

    def latest_time(self) -> TimedOffset | None:
        """The record with the largest timestamp, or None in an empty log."""
        largest = max((segment.max_timestamp for segment in self.segments), default=NO_TIMESTAMP)
        return None if largest == NO_TIMESTAMP else self.offset_for_time(largest)

    # -- deleting -------------------------------------------------------------------------------------------

    def delete_before(self, offset: int) -> int:
        """Forget everything below `offset` (-1: everything); returns the new start offset."""
        target = self.end_offset if offset == -1 else offset
        if target < 0 or target > self.end_offset:
            raise Refusal(Code.OFFSET_OUT_OF_RANGE, f"offset {offset} is beyond the end {self.end_offset}")
        if target > self.start_offset:
            self._set_start(target)
        if target == self.end_offset and self.active.size:
            self.roll()
        while len(self.segments) > 1 and self.segments[0].next_offset <= self.start_offset:
            self._drop_first()
        return self.start_offset

    def apply_retention(self, now_ms: int) -> int:
        """Drop whole segments that are too old or too many; returns how many."""
        if not self.policy.delete:
            return 0
        dropped = 0
        while self._first_is_expired(now_ms):
            if len(self.segments) == 1:
                self.roll()
            self._drop_first()
            dropped += 1
        if dropped:
            self._set_start(max(self.start_offset, self.segments[0].base_offset))
        return dropped

    def _first_is_expired(self, now_ms: int) -> bool:
        first, policy = self.segments[0], self.policy
        if not first.size:
            return len(self.segments) > 1
        if policy.retention_ms >= 0 and now_ms - self._age_mark(first) > policy.retention_ms:
            return True
        rest = self.size - first.size
        return policy.retention_bytes >= 0 and len(self.segments) > 1 and rest >= policy.retention_bytes

    def _age_mark(self, segment: Segment) -> int:
        return segment.max_timestamp if segment.max_timestamp >= 0 else (segment.first_append_ms or 0)

    def _drop_first(self) -> None:
        gone = self.segments.pop(0)
        self._unflushed.discard(gone.path)
        gone.delete()

    def replace_segments(self, old: list[Segment], cleaned: Path) -> None:
        """Put a cleaned file in the place of neighbouring closed segments; the order makes a stop halfway harmless."""
        at = self.segments.index(old[0])
        replacement = Segment(old[0].path, old[0].base_offset)
        cleaned.replace(replacement.path)
        for _ in replacement.recover(check_crc=False):
            pass
        for segment in old[1:]:
            segment.delete()
        sync_folder(self.folder)
        self.segments[at : at + len(old)] = [replacement]

    def _set_start(self, offset: int) -> None:
        replace_file(self.folder / _START_OFFSET_FILE, str(offset).encode())
        self.start_offset = offset

    # -- flushing -------------------------------------------------------------------------------------------

    def take_unflushed(self) -> set[Path]:
        """The files that were written since the last call."""
        taken, self._unflushed = self._unflushed, set()
        return taken

    def flush(self) -> None:
        """Force everything to the disk before returning."""
        for path in self.take_unflushed():
            sync_file(path)


def sync_file(path: Path) -> None:
    """Force one file's data to the disk; a file that was deleted meanwhile needs none."""
    try:
        fd = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return
    try:
        os.fdatasync(fd)
    finally:
        os.close(fd)
