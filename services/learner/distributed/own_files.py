"""What a rank other than 0 writes and reads of checkpoints.

Invariant: one write is on its way at a time, in a thread of its own; what went wrong with it is raised where it is
waited for. The thread is a daemon: a process that has to leave does not wait for ranks that are gone.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path

from torch import Tensor
from torch.distributed import ProcessGroup

from services.learner.checkpoint import CheckpointStore
from services.learner.manifest import OPTIMIZER
from services.learner.sharded import SavedShards


class OwnFiles:
    """`group`: the ranks that write together, beside steps."""

    def __init__(self, checkpoints: CheckpointStore, cache: Path, group: ProcessGroup | None) -> None:
        self._checkpoints = checkpoints
        self._cache = cache
        self._group = group
        self._writing: Future[None] | None = None

    def write(self, step: int, tensors: Mapping[str, Tensor]) -> None:
        """Begins to write this rank's part of the checkpoint of `step`. `wait` must have returned before."""
        writing: Future[None] = Future()

        def run() -> None:
            try:
                self._checkpoints.write_optimizer(step, tensors, self._group)
            except BaseException as error:  # noqa: BLE001 - handed to whoever waits, whatever it is
                writing.set_exception(error)
            else:
                writing.set_result(None)

        self._writing = writing
        threading.Thread(target=run, name="rank-disk", daemon=True).start()

    def wait(self) -> None:
        """Until nothing is being written. Raises as `save_sharded`, on every rank the same."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def saved(self, folder: str, digests: Mapping[str, str]) -> SavedShards:
        return SavedShards(self._checkpoints.store, folder, OPTIMIZER, digests, self._cache)
