"""One learner a run.

Invariant: while the lock is held no other learner of the run writes checkpoints. The kernel releases it with the
process, however it ends. A remote object store has no such lock; there the deployment must run one replica.
"""

from __future__ import annotations

import fcntl
import os
import time

from shared.errors import TemperError
from shared.storage import ObjectStore

_RETRY_S = 0.1


class RunLock:
    """Held from `take` until `release`."""

    def __init__(self, store: ObjectStore, run_id: str) -> None:
        self._run_id = run_id
        self._path = store.local_path(f"checkpoints/{run_id}/.lock")
        self._descriptor: int | None = None

    def take(self, patience_s: float) -> None:
        """Blocking: waits for a predecessor that drains. Raises `TemperError` after `patience_s`."""
        if self._path is None:
            return
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        until = time.monotonic() + patience_s
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if time.monotonic() >= until:
                    holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
                    os.close(descriptor)
                    raise TemperError(
                        f"another learner of run {self._run_id!r} is running (process {holder or 'unknown'}): "
                        "stop it first; a run has one learner"
                    ) from error
                time.sleep(_RETRY_S)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        self._descriptor = descriptor

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
