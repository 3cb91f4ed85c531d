"""What the object store holds of a run's policies.

Invariant: a checkpoint counts as complete only where its manifest is there and its state hashes to it (neither is
ever pruned); what else the manifest lists is there as it was written, is gone, or is named as damaged.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from shared.contracts import Policy
from shared.errors import DigestMismatchError, StorageError
from shared.storage import ObjectStore
from temper.audit.facts import CheckpointFact, GroupSet, PolicyFact

MANIFEST, STATE, WEIGHTS = "manifest.json", "state.json", "weights.safetensors"


def checkpoint_key(uri: str, run_id: str) -> str:
    """`checkpoints/<run>/<step>` of a checkpoint's URI, wherever the store was when it was written."""
    marker = f"checkpoints/{run_id}/"
    head, found, tail = uri.rstrip("/").rpartition(marker)
    return marker + tail if found else head + tail


def policy_facts(announced: Iterable[Policy], run_id: str) -> tuple[PolicyFact, ...]:
    """One fact for every distinct announcement (a restored version is announced again)."""
    return tuple(
        dict.fromkeys(
            PolicyFact(p.version, p.step, p.weights.sha256, checkpoint_key(p.checkpoint_uri, run_id))
            for p in announced
        )
    )


def read_checkpoints(store: ObjectStore, run_id: str, *, digests: bool) -> tuple[CheckpointFact, ...]:
    """Every checkpoint folder of the run, by step. `digests`: hash the large files that are still there."""
    prefix = f"checkpoints/{run_id}/"
    keys = set(store.list(prefix))
    folders = sorted({key.removeprefix(prefix).split("/", 1)[0] for key in keys})
    return tuple(_read(store, prefix + name, keys, digests) for name in folders if name.isdecimal())


def read_memory(store: ObjectStore, checkpoints: Iterable[CheckpointFact]) -> GroupSet | None:
    """The groups that the newest complete checkpoint knows as resolved; None where none is complete.

    Raises `StorageError` where its state does not say.
    """
    newest = max((c for c in checkpoints if not c.problem), key=lambda c: c.step, default=None)
    if newest is None:
        return None
    from services.learner.intake.resolved import ResolvedGroups

    uri = store.uri_of(f"{newest.key}/{STATE}")
    try:
        return ResolvedGroups.from_state(json.loads(store.get_bytes(uri))["intake"]["resolved"])
    except (ValueError, KeyError, TypeError) as error:
        raise StorageError(
            f"{uri} names no resolved groups ({type(error).__name__}: {error}): another build wrote it; audit with that one"
        ) from error


def _read(store: ObjectStore, key: str, keys: set[str], digests: bool) -> CheckpointFact:
    step = int(key.rsplit("/", 1)[1])
    for name in (MANIFEST, STATE):
        if f"{key}/{name}" not in keys:
            return CheckpointFact(key, step, f"it has no {name}: it was never completed")
    try:
        files = _files(store, key)
        store.get_bytes(store.uri_of(f"{key}/{STATE}"), files[STATE])
        weights = files[WEIGHTS]
    except (ValueError, KeyError, TypeError) as error:
        return CheckpointFact(key, step, f"its {MANIFEST} is not readable: {type(error).__name__}: {error}")
    except StorageError as error:
        return CheckpointFact(key, step, str(error))
    large = {name: digest for name, digest in files.items() if name != STATE}
    present = {name: digest for name, digest in large.items() if f"{key}/{name}" in keys}
    return CheckpointFact(
        key=key,
        step=step,
        weights_digest=weights,
        pruned=tuple(name for name in large if name not in present),
        damaged=_damaged(store, key, present) if digests else (),
    )


def _files(store: ObjectStore, key: str) -> dict[str, str]:
    """Digest by file name, of the manifest."""
    manifest: Any = json.loads(store.get_bytes(store.uri_of(f"{key}/{MANIFEST}")))
    return {str(name): str(entry["sha256"]) for name, entry in manifest["files"].items()}


def _damaged(store: ObjectStore, key: str, files: Mapping[str, str]) -> tuple[str, ...]:
    found = []
    for name, digest in files.items():
        with tempfile.TemporaryDirectory(prefix="temper-audit-") as cache:
            try:
                store.fetch(store.uri_of(f"{key}/{name}"), digest, Path(cache))
            except DigestMismatchError as error:
                found.append(str(error))
            except StorageError:
                if store.exists(f"{key}/{name}"):
                    raise
                # A learner at work pruned it after it was listed.
    return tuple(found)
