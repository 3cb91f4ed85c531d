"""Claim check: a body too large for the bus waits in the object store, and its ticket travels.

Invariant: the ticket is sent only after the body is durable, and a body is accepted only under the digest on its
ticket (pattern: Hohpe and Woolf, Enterprise Integration Patterns, "Claim Check").
"""

from __future__ import annotations

import hashlib
import json

from shared.errors import ContractError
from shared.storage import ObjectStore

PREFIX = "bodies"


def key_of(run: str, digest: str) -> str:
    """Apart by run: only a run's own topics say which of its bodies are still wanted."""
    return f"{PREFIX}/{run}/{digest}"


def park(store: ObjectStore, run: str, body: bytes) -> str:
    """Store `body` under its digest; returns the ticket, JSON for the header `claim`. Blocking.

    One that is there already is written again: its age says since when nobody can have asked for it
    (`temper storage sweep`). Raises `StorageError`.
    """
    digest = hashlib.sha256(body).hexdigest()
    uri = store.put_bytes(key_of(run, digest), body).uri
    return json.dumps({"uri": uri, "sha256": digest, "bytes": len(body)}, separators=(",", ":"))


def redeem(store: ObjectStore, ticket: str) -> bytes:
    """The body of a ticket. Blocking.

    Raises `ContractError` for a ticket that cannot be read, `StorageError` for a body that is not there (a fault
    that may pass) and `DigestMismatchError` for one that is another.
    """
    try:
        claim = json.loads(ticket)
        uri, digest, size = str(claim["uri"]), str(claim["sha256"]), int(claim["bytes"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ContractError(
            f"header claim is {ticket[:200]!r}: it must be JSON with uri, sha256 and bytes"
        ) from error
    if len(digest) != 64 or size < 0:
        raise ContractError(f"header claim carries sha256 {digest[:80]!r} and {size} bytes: not usable")
    return store.get_bytes(uri, digest)
