"""The weights of a policy, brought to this machine: whole, or from the policy that is served and what changed since.

Invariant: what comes out is a file with the announced digest, whichever way it took. A delta that is missing, damaged
or of another base is told and costs a full fetch, never an attestation. What is served stays on the disk: the next
delta is applied to it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import structlog

from shared.contracts import DeltaRef, Policy
from shared.errors import StorageError
from shared.storage import ObjectStore
from shared.storage.cache import ObjectCache
from shared.weights.delta import DeltaFile, rebuild
from shared.weights.layout import WeightsFile

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Pulled:
    """path: a file with the announced digest. moved_bytes: of objects that it took; 0 where it lay here already."""

    path: Path
    way: str
    """`full` or `delta`."""
    moved_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class _Way:
    """From a file that lies here, by the deltas that follow it."""

    sha256: str
    path: Path
    deltas: tuple[DeltaRef, ...]


class PolicyPull:
    """Blocking: call it in a thread, one call at a time."""

    def __init__(self, store: ObjectStore, cache: ObjectCache) -> None:
        self._store = store
        self._cache = cache
        self._served: tuple[str, Path] | None = None

    def get(self, policy: Policy, *, afresh: bool = False) -> Pulled:
        """`afresh`: nothing that lies here is trusted, and no delta.

        Raises `StorageError`, `DigestMismatchError` among them.
        """
        began = time.monotonic()
        if afresh:
            self._cache.forget(policy.weights.sha256)
        else:
            path, moved = self._by_delta(policy)
            if path is not None:
                return Pulled(path, "delta", moved, time.monotonic() - began)
        weights = policy.weights
        if weights.kind not in {"full", "adapter"}:
            raise StorageError(
                f"policy {policy.version}: its weights are announced as a {weights.kind} alone: "
                "run learner and rollout from one build"
            )
        here = (self._cache.folder / weights.sha256).is_file()
        path = self._cache.fetch(self._store, weights.uri, weights.sha256)
        in_place = here or path.parent != self._cache.folder
        return Pulled(path, "full", 0 if in_place else weights.size_bytes, time.monotonic() - began)

    def served(self, policy: Policy, pulled: Pulled) -> None:
        """The engine has it: what else lies here may go."""
        self._served = (policy.weights.sha256, pulled.path)
        self._cache.keep_only(pulled.path)
        self._cache.tidy()

    def refused(self, policy: Policy) -> None:
        """The engine does not take it."""
        self._cache.forget(policy.weights.sha256)

    def close(self) -> None:
        self._cache.close()

    def _by_delta(self, policy: Policy) -> tuple[Path | None, int]:
        way, moved = self._way(policy), 0
        if way is None:
            return None, 0

        def build(scratch: Path) -> str:
            nonlocal moved
            files = [self._cache.fetch(self._store, delta.uri, delta.sha256) for delta in way.deltas]
            moved = sum(delta.size_bytes for delta in way.deltas)
            return rebuild(WeightsFile(way.path), way.sha256, [DeltaFile(file) for file in files], scratch)

        try:
            return self._cache.make(policy.weights.sha256, build), moved
        except StorageError as error:
            _log.warning(
                "policy.delta_refused, its full weights are fetched", version=policy.version, error=str(error)
            )
            return None, 0

    def _way(self, policy: Policy) -> _Way | None:
        """The shortest one; None where no base lies here, or the full weights are fewer bytes.

        A base is what is served, or what a process before this one, or beside it, has left in the cache.
        """
        total = 0
        for number in reversed(range(len(policy.deltas))):
            delta = policy.deltas[number]
            total += delta.size_bytes
            if total >= policy.weights.size_bytes:
                return None
            base = self._at(delta.base_sha256)
            if base is not None:
                return _Way(delta.base_sha256, base, policy.deltas[number:])
        return None

    def _at(self, sha256: str) -> Path | None:
        if self._served is not None and self._served[0] == sha256:
            return self._served[1]
        return self._cache.find(sha256)
