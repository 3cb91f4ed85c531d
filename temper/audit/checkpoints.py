"""What the object store holds of a run's policies.

Invariant: a checkpoint counts as complete only where its manifest is there and every file it lists that is not
pruned by design has the listed size and digest. State and manifest are never pruned.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable
from pathlib import Path

from shared.contracts import Policy
from shared.errors import DigestMismatchError, StorageError
from shared.storage import ObjectStore
from temper.audit.facts import CheckpointFact, PolicyFact

MANIFEST, STATE = "manifest.json", "state.json"


def checkpoint_key(uri: str, run_id: str) -> str:
    """`checkpoints/<run>/<step>` of a checkpoint's URI, wherever the store was when it was written."""
    marker = f"checkpoints/{run_id}/"
    head, found, tail = uri.rstrip("/").rpartition(marker)
    return marker + tail if found else head + tail


def read_checkpoints(store: ObjectStore, run_id: str) -> tuple[CheckpointFact, ...]:
    """Every checkpoint folder of the run, by step."""
    prefix = f"checkpoints/{run_id}/"
    keys = store.list(prefix)
    folders = sorted({key.removeprefix(prefix).split("/", 1)[0] for key in keys if key.count("/") > 2})
    return tuple(
        CheckpointFact(
            key=prefix + name,
            step=int(name) if name.isdecimal() else -1,
            problem=_problem(store, prefix + name, set(keys)) if name.isdecimal() else "its name is no step",
        )
        for name in folders
    )


def _problem(store: ObjectStore, folder: str, keys: set[str]) -> str:
    for name in (MANIFEST, STATE):
        if f"{folder}/{name}" not in keys:
            return f"it has no {name}: it was never completed"
    try:
        manifest = json.loads(store.get_bytes(store.uri_of(f"{folder}/{MANIFEST}")))
        digest = manifest["files"][STATE]["sha256"]
        store.get_bytes(store.uri_of(f"{folder}/{STATE}"), digest)
    except (ValueError, KeyError, TypeError) as error:
        return f"its {MANIFEST} is not readable: {type(error).__name__}: {error}"
    except StorageError as error:
        return str(error)
    return ""


def read_policies(
    store: ObjectStore, run_id: str, announced: Iterable[Policy], *, digests: bool
) -> tuple[PolicyFact, ...]:
    """One fact for every distinct announcement. `digests`: hash the weights that are still there."""
    distinct = {(p.version, p.weights.sha256, p.checkpoint_uri): p for p in announced}
    facts = []
    for policy in distinct.values():
        key = checkpoint_key(policy.weights.uri, run_id)
        present = store.exists(key)
        facts.append(
            PolicyFact(
                version=policy.version,
                step=policy.step,
                digest=policy.weights.sha256,
                checkpoint=checkpoint_key(policy.checkpoint_uri, run_id),
                weights_present=present,
                weights_problem=_weights_problem(store, key, policy) if present and digests else "",
            )
        )
    return tuple(facts)


def _weights_problem(store: ObjectStore, key: str, policy: Policy) -> str:
    with tempfile.TemporaryDirectory() as cache:
        try:
            store.fetch(store.uri_of(key), policy.weights.sha256, Path(cache))
        except DigestMismatchError as error:
            return str(error)
    return ""
