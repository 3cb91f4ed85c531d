"""Which objects the records of a run still name.

Invariant: every record of every topic of the run is looked at, waiting retries and dead letters (which a replay sends
again) among them; a record that cannot be read, but may name something, is an error and no absence.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from shared.bus.delivery import RawRecord
from shared.bus.records import header
from shared.contracts import Task
from shared.contracts.base import Message
from shared.errors import ContractError, StorageError, UnreachableError
from shared.settings import Settings
from shared.storage import ObjectStore
from temper.audit.collect import audited_topics
from temper.audit.log import TopicLog


def named(
    settings: Settings, store: ObjectStore, told: Callable[[int], None] = lambda count: None
) -> frozenset[str]:
    """The digests of bodies and workspaces. Blocking. `told` gets the count of records so far, now and then.

    Raises `BusError` where the topics cannot be read, `StorageError` for a record whose objects cannot be known.
    """
    found: set[str] = set()
    with TopicLog(settings, audited_topics(settings), store) as log:
        for count, record in enumerate(log.records(), 1):
            found |= _of(record, log.message)
            if not count % 1000:
                told(count)
    return frozenset(found)


def _of(record: RawRecord, read: Callable[[RawRecord], Message]) -> set[str]:
    digests: set[str] = set()
    ticket = header(record.headers, "claim")
    if ticket:
        try:
            digests.add(str(json.loads(ticket)["sha256"]))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise StorageError(
                f"record {record.position} has a ticket that cannot be read: {error}"
            ) from error
    # Of what tasks carry only a continuation names an object; whoever has none is spared the reading.
    if header(record.headers, "schema").startswith(f"{Task.SCHEMA}/") and (
        ticket or b'"workspace"' in (record.value or b"")
    ):
        digests |= _workspace(record, read)
    return digests


def _workspace(record: RawRecord, read: Callable[[RawRecord], Message]) -> set[str]:
    try:
        message = read(record)
    except UnreachableError:
        raise
    except (ContractError, StorageError):
        return set()  # No process can take it either, so none goes on with its workspace.
    if (
        not isinstance(message, Task)
        or message.continuation is None
        or message.continuation.workspace is None
    ):
        return set()
    return {message.continuation.workspace.sha256}
