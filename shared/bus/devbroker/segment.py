"""One segment of a partition's log: a file of record batches, and a sparse index of it in memory.

Invariant: the file holds whole batches with rising offsets, from 0 up to `size`; anything behind a torn batch is
cut off when the segment is recovered.
"""

import os
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shared.bus.devbroker.batches import (
    HEADER_BYTES,
    BatchHeader,
    Buffer,
    crc_matches,
    is_plausible,
    read_header,
)

INDEX_EVERY_BYTES = 4096
SUFFIX = ".log"
NO_TIMESTAMP = -1


def segment_path(folder: Path, base_offset: int) -> Path:
    return folder / f"{base_offset:020d}{SUFFIX}"


class Segment:
    """A file that starts at `base_offset`; only the last segment of a log is appended to."""

    def __init__(self, path: Path, base_offset: int) -> None:
        self.path = path
        self.base_offset = base_offset
        self.next_offset = base_offset
        self.size = 0
        self.max_timestamp = NO_TIMESTAMP
        self.first_append_ms: int | None = None
        self._fd: int | None = None
        # Parallel lists, one entry about every 4 KiB: offset, file position, largest timestamp before it.
        self._index_offsets: list[int] = []
        self._index_positions: list[int] = []
        self._index_timestamps: list[int] = []

    def append(self, head: Buffer, tail: Buffer, header: BatchHeader, now_ms: int) -> None:
        """Write one batch given as its first 61 bytes and the rest. Raises OSError; the file is then as before."""
        fd = self._writable()
        expected = len(head) + len(tail)
        try:
            written = os.pwritev(fd, [head, tail], self.size)
            while written < expected:
                rest = (bytes(head) + bytes(tail))[written:]
                written += os.pwrite(fd, rest, self.size + written)
        except OSError:
            os.ftruncate(fd, self.size)
            raise
        if self.first_append_ms is None:
            self.first_append_ms = now_ms
        self._note(header, self.size)

    def _note(self, header: BatchHeader, position: int) -> None:
        if not self._index_positions or position - self._index_positions[-1] >= INDEX_EVERY_BYTES:
            self._index_offsets.append(header.base_offset)
            self._index_positions.append(position)
            self._index_timestamps.append(self.max_timestamp)
        self.max_timestamp = max(self.max_timestamp, header.max_timestamp)
        self.next_offset = header.last_offset + 1
        self.size = position + header.size

    def recover(self, check_crc: bool) -> Iterator[BatchHeader]:
        """Read the file anew, yield every header, stop at the first torn batch. Call `cut` afterwards."""
        self.next_offset, self.size, self.max_timestamp = self.base_offset, 0, NO_TIMESTAMP
        self._index_offsets, self._index_positions, self._index_timestamps = [], [], []
        file_size = self.path.stat().st_size
        if file_size:
            self.first_append_ms = int(self.path.stat().st_mtime * 1000)
        with self._readable() as fd:
            while self.size + HEADER_BYTES <= file_size:
                header = read_header(os.pread(fd, HEADER_BYTES, self.size))
                if not is_plausible(header) or self.size + header.size > file_size:
                    return
                if header.base_offset < self.next_offset:
                    return
                if check_crc and not crc_matches(os.pread(fd, header.size, self.size), header):
                    return
                self._note(header, self.size)
                yield header

    def cut(self) -> int:
        """Truncate the file behind its last whole batch; returns the bytes that were cut."""
        torn = self.path.stat().st_size - self.size
        if torn:
            os.truncate(self.path, self.size)
        return torn

    def position_of(self, offset: int) -> int:
        """File position of the first batch that ends at `offset` or later; `size` when there is none."""
        at = bisect_right(self._index_offsets, offset) - 1
        start = self._index_positions[at] if at >= 0 else 0
        for position, header in self.headers(start):
            if header.last_offset >= offset:
                return position
        return self.size

    def first_at_or_after(self, timestamp: int) -> int | None:
        """File position of the first batch whose largest timestamp is at least `timestamp`."""
        if self.max_timestamp < timestamp:
            return None
        at = 0
        while at + 1 < len(self._index_timestamps) and self._index_timestamps[at + 1] < timestamp:
            at += 1
        for position, header in self.headers(self._index_positions[at]):
            if header.max_timestamp >= timestamp:
                return position
        return None

    def headers(self, position: int = 0) -> Iterator[tuple[int, BatchHeader]]:
        """Every header from `position` on, with its file position."""
        with self._readable() as fd:
            chunk, chunk_at = b"", position
            while position + HEADER_BYTES <= self.size:
                if position + HEADER_BYTES > chunk_at + len(chunk):
                    chunk, chunk_at = os.pread(fd, INDEX_EVERY_BYTES + HEADER_BYTES, position), position
                header = read_header(chunk, position - chunk_at)
                yield position, header
                position += header.size

    def read(self, position: int, max_bytes: int, at_least_one: bool) -> bytes:
        """Whole batches from `position` on, at most `max_bytes`; the first one is exempt under `at_least_one`."""
        with self._readable() as fd:
            data = os.pread(fd, min(max_bytes, self.size - position), position)
            whole = 0
            while whole + HEADER_BYTES <= len(data):
                size = read_header(data, whole).size
                if whole + size > len(data):
                    break
                whole += size
            if whole or not at_least_one or position >= self.size:
                return data if whole == len(data) else data[:whole]
            first = read_header(os.pread(fd, HEADER_BYTES, position))
            return os.pread(fd, first.size, position)

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def delete(self) -> None:
        self.close()
        self.path.unlink(missing_ok=True)

    def _writable(self) -> int:
        if self._fd is None:
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        return self._fd

    @contextmanager
    def _readable(self) -> Iterator[int]:
        """The open file of an active segment, or a short-lived one: a thousand closed segments hold no descriptor."""
        if self._fd is not None:
            yield self._fd
            return
        fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            yield fd
        finally:
            os.close(fd)
