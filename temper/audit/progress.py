"""How far the workers of a run have come: what they have finished, by their committed offsets.

Invariant: a record counts as finished only where a consumer group of the service has committed past it, or has noted
it as finished ahead. Read before the topics are: whatever was finished by then has its outputs in what is read after.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shared.bus.admin import admin_client
from shared.bus.commit_notes import Range, decode_ahead
from shared.bus.records import Position
from shared.bus.topics import WORKING_SERVICES
from shared.settings import Settings

Place = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Commit:
    """`next` is the first offset that is not finished; `ahead` are ranges beyond it that are."""

    next: int
    ahead: tuple[Range, ...] = ()

    def covers(self, offset: int) -> bool:
        return offset < self.next or any(span.start <= offset < span.end for span in self.ahead)


@dataclass(frozen=True, slots=True)
class Progress:
    """`commits[service][topic, partition]`: one commit for each group that has one there."""

    commits: Mapping[str, Mapping[Place, tuple[Commit, ...]]]

    def finished(self, service: str, position: Position) -> bool:
        """Whether any fleet of the service is done with the record."""
        found = self.commits.get(service, {}).get((position.topic, position.partition), ())
        return any(commit.covers(position.offset) for commit in found)


def read_progress(settings: Settings) -> Progress:
    """Raises `BusError` where the broker does not say."""
    commits: dict[str, dict[Place, tuple[Commit, ...]]] = {}
    with admin_client(settings.bus) as client:
        names = [group["group_id"] for group in client.list_groups()]
        for service in WORKING_SERVICES:
            prefix = f"{settings.bus.namespace}.{settings.run.name}.{service}."
            places = commits.setdefault(service, {})
            for name in names:
                if name.startswith(prefix):
                    for place, committed in client.list_group_offsets(name)[name].items():
                        if committed.offset < 0:
                            continue
                        ahead = decode_ahead(committed.offset, committed.metadata)
                        key = (place.topic, place.partition)
                        places[key] = (*places.get(key, ()), Commit(committed.offset, tuple(ahead)))
    return Progress(commits)
