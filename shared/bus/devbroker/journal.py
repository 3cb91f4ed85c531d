"""An append-only file of JSON entries, one a line, each behind its CRC-32.

Invariant: an entry that `append` returned from is in the kernel; a torn or damaged line ends the journal and is cut
off, so that what is read back is always a prefix of what was written.
"""

import json
import os
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import structlog

from shared.bus.devbroker.codes import Code, Refusal
from shared.bus.devbroker.files import replace_file

Entry = dict[str, Any]


def _line(entry: Entry) -> bytes:
    body = json.dumps(entry, separators=(",", ":")).encode()
    return b"%08x %s\n" % (zlib.crc32(body), body)


def _entry(line: bytes) -> Entry | None:
    if len(line) < 10 or not line.endswith(b"\n"):
        return None
    body = line[9:-1]
    if b"%08x" % zlib.crc32(body) != line[:8]:
        return None
    decoded: Entry = json.loads(body)
    return decoded


class Journal:
    """One journal file. Not thread-safe."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        self._fd: int | None = None

    def open(self) -> list[Entry]:
        """Every whole entry, oldest first; the file is cut behind the last one."""
        entries: list[Entry] = []
        self.size = 0
        if self.path.exists():
            with self.path.open("rb") as file:
                for line in file:
                    entry = _entry(line)
                    if entry is None:
                        break
                    entries.append(entry)
                    self.size += len(line)
            torn = self.path.stat().st_size - self.size
            if torn:
                structlog.get_logger().warning("devbroker.journal_cut", path=str(self.path), bytes_cut=torn)
                os.truncate(self.path, self.size)
        self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        return entries

    def append(self, entry: Entry) -> None:
        """Raises Refusal(KAFKA_STORAGE_ERROR) when the disk refuses; the journal is then as before."""
        assert self._fd is not None, "the journal is not open"
        line = _line(entry)
        try:
            written = os.pwrite(self._fd, line, self.size)
            if written < len(line):
                raise OSError(28, "no space left on device")
        except OSError as fault:
            os.ftruncate(self._fd, self.size)
            message = f"cannot write {self.path}: {fault.strerror}; free space or choose another data folder"
            raise Refusal(Code.KAFKA_STORAGE_ERROR, message) from fault
        self.size += len(line)

    def rewrite(self, entries: Iterable[Entry]) -> None:
        """Replace the whole journal atomically."""
        self.close()
        content = b"".join(_line(entry) for entry in entries)
        replace_file(self.path, content)
        self._fd = os.open(self.path, os.O_WRONLY | os.O_CLOEXEC)
        self.size = len(content)

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
