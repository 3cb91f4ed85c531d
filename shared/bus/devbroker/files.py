"""Small files that are always either the old or the new version, and the lock on a data folder.

Invariant: a reader never sees half of a replaced file, and one data folder has one broker.
"""

import fcntl
import os
from pathlib import Path

from shared.bus.devbroker.settings import DevBrokerError


def replace_file(path: Path, content: bytes) -> None:
    """Write `content` to a neighbour, force it to the disk, and rename it over `path`."""
    temporary = path.with_name(path.name + ".new")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(fd, view) :]
        os.fsync(fd)
    finally:
        os.close(fd)
    temporary.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make renames and new names in a folder durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class FolderLock:
    """An flock on `<folder>/lock`; the kernel releases it when the process ends, however it ends."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._fd: int | None = None

    def acquire(self) -> None:
        """Raises DevBrokerError when the folder can't be written or another broker has it."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            fd = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as fault:
            raise DevBrokerError(
                f"cannot write the data folder {self._folder}: {fault.strerror}; choose another with --data"
            ) from fault
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as fault:
            holder = os.pread(fd, 32, 0).decode(errors="replace").strip() or "unknown"
            os.close(fd)
            raise DevBrokerError(
                f"the data folder {self._folder} is in use by another broker (process {holder}); "
                "stop that one or choose another folder with --data"
            ) from fault
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        self._fd = fd

    def release(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
