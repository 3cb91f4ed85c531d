"""Which objects the records of a run still name.

Invariant: every record of every topic of the run's namespace is looked at: those that the settings name no more (a
workload or a retry delay that was taken out), waiting retries and dead letters (which a replay sends again) among them;
and whatever looks like a digest where a record names objects counts as one, also in a task of a version that this
process cannot read.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from shared.bus.admin import admin_client
from shared.bus.delivery import RawRecord
from shared.bus.records import header
from shared.bus.topics import manifest
from shared.contracts import Task
from shared.errors import ContractError, StorageError, UnreachableError
from shared.settings import Settings
from shared.storage import ObjectStore
from temper.audit.log import TopicLog

_DIGESTS = re.compile(r"[0-9a-f]{64}")
_TELL_EVERY = 100_000


@dataclass(frozen=True, slots=True)
class Named:
    """`digests` of bodies and workspaces; `own`: the records that are the run's."""

    digests: frozenset[str]
    own: int


def named(settings: Settings, store: ObjectStore, told: Callable[[int], None] = lambda count: None) -> Named:
    """Blocking. `told` gets the count of records so far, now and then.

    Raises `BusError` where the topics cannot be read, `UnreachableError` where the body of a task cannot be had now.
    """
    found: set[str] = set()
    own = 0
    with TopicLog(settings, _topics(settings), store) as log:
        for count, record in enumerate(log.records(), 1):
            own += header(record.headers, "run_id") == settings.run.name
            found |= _of(record, log.body)
            if not count % _TELL_EVERY:
                told(count)
    return Named(frozenset(found), own)


def _topics(settings: Settings) -> tuple[str, ...]:
    """Those that must be there, and others of their kinds that are there under the namespace."""
    prefix = f"{settings.bus.namespace}."
    wanted = {spec.name for spec in manifest(settings)}
    kinds = {name.removeprefix(prefix).partition(".")[0] for name in wanted}
    with admin_client(settings.bus) as client:
        there = {str(topic) for topic in client.list_topics()}
    others = {
        name
        for name in there
        if name.startswith(prefix) and name.removeprefix(prefix).partition(".")[0] in kinds
    }
    return tuple(sorted(wanted | others))


def _of(record: RawRecord, body: Callable[[RawRecord], bytes]) -> set[str]:
    ticket = header(record.headers, "claim")
    # A ticket without a digest is nobody's: no process can redeem it.
    digests = set(_DIGESTS.findall(ticket))
    # Of what tasks carry only a continuation names an object; whoever has none is spared the reading.
    if header(record.headers, "schema").startswith(f"{Task.SCHEMA}/") and (
        ticket or b'"workspace"' in (record.value or b"")
    ):
        digests |= _in_task(record, body)
    return digests


def _in_task(record: RawRecord, body: Callable[[RawRecord], bytes]) -> set[str]:
    try:
        return set(_DIGESTS.findall(body(record).decode(errors="replace")))
    except UnreachableError:
        raise
    except (ContractError, StorageError):
        # Its body is gone or another: no process can take it either, so none goes on with its workspace.
        return set()
