"""Bodies and workspaces that no record of their run names any more.

Invariant: nothing goes that a record names, nor what was written less than an hour ago: it may belong to a record that is
still on its way. Weights and checkpoints are the learner's, and are not looked at.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from services.rollout.turns import carrying
from shared.bus import claims
from shared.errors import StorageError
from shared.storage import ObjectStore, Stored

KINDS = {"bodies": claims.PREFIX, "workspaces": carrying.PREFIX}
"""What it is, and the folder of the store."""
LEAST_AGE_H = 1.0
_OURS = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Kept:
    """The objects of one kind. `free`: those that may go."""

    kind: str
    objects: int
    size_bytes: int
    free: tuple[Stored, ...]

    @property
    def free_bytes(self) -> int:
        return sum(stored.size_bytes for stored in self.free)


def look(
    store: ObjectStore, run: str, named: AbstractSet[str], older_than_h: float, now_s: float | None = None
) -> list[Kept]:
    """What there is of each kind, and what of it may go. Blocking. Raises `StorageError`."""
    written_before = (time.time() if now_s is None else now_s) - older_than_h * 3600
    found = {kind: _ours(store, f"{folder}/{run}") for kind, folder in KINDS.items()}
    return [
        Kept(
            kind,
            len(objects),
            sum(stored.size_bytes for stored in objects),
            _free(objects, named, written_before),
        )
        for kind, objects in found.items()
    ]


def _ours(store: ObjectStore, folder: str) -> list[Stored]:
    """What lies there under a digest, as bodies and workspaces do; the rest is somebody else's."""
    return [
        stored for stored in store.listed(folder) if _OURS.fullmatch(stored.key.removeprefix(f"{folder}/"))
    ]


def _free(objects: Sequence[Stored], named: AbstractSet[str], written_before: float) -> tuple[Stored, ...]:
    return tuple(
        stored
        for stored in objects
        if stored.key.rpartition("/")[2] not in named and stored.modified_s < written_before
    )


def remove(store: ObjectStore, kept: Iterable[Kept]) -> None:
    """What may go of them. Blocking. Raises `StorageError`; what is gone by then is gone."""
    for one in kept:
        for stored in one.free:
            try:
                store.delete(stored.key)
            except OSError as error:
                raise StorageError(
                    f"{store.uri_of(stored.key)} cannot be removed: {error.strerror}; sweep as the user whose store it is"
                ) from error
