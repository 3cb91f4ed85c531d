"""Where to read from after a restart.

Invariant: a restart reads every record whose effect is not yet in a checkpoint exactly once more, and ignores
every other one. A partition's state is the next offset to read and the earlier offsets still needed (records of
groups that are not resolved).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple


class Place(NamedTuple):
    """Where a record is."""

    topic: str
    partition: int
    offset: int

    @property
    def shard(self) -> tuple[str, int]:
        return self.topic, self.partition


Shard = tuple[str, int]


class OffsetBook:
    """The places that unresolved groups need."""

    def __init__(self) -> None:
        self._needed: dict[Shard, set[int]] = {}

    def hold(self, place: Place) -> None:
        self._needed.setdefault(place.shard, set()).add(place.offset)

    def release(self, places: Iterable[Place]) -> None:
        for place in places:
            self._needed.get(place.shard, set()).discard(place.offset)

    def to_state(self, positions: Mapping[Shard, int]) -> list[dict[str, Any]]:
        """JSON of every shard in `positions` (the next offset to read of each)."""
        return [
            {
                "topic": topic,
                "partition": partition,
                "next": position,
                "needed": sorted(self._needed.get((topic, partition), ())),
            }
            for (topic, partition), position in sorted(positions.items())
        ]


Admission = Literal["handled", "replayed", "new"]


class ReplayGate:
    """Sorts the records read after a restart.

    Until every needed record is back the gate is closed: records that are new must wait, so that what they meet
    is the state that the checkpoint was made in, whatever the order in which partitions are read.
    """

    def __init__(self, state: Iterable[Mapping[str, Any]] = ()) -> None:
        self._next: dict[Shard, int] = {}
        self._needed: dict[Shard, set[int]] = {}
        for entry in state:
            shard = (entry["topic"], entry["partition"])
            self._next[shard] = entry["next"]
            self._needed[shard] = set(entry["needed"])

    @property
    def open(self) -> bool:
        return not any(self._needed.values())

    def start(self) -> dict[Shard, int]:
        """The offset to seek to in each shard that the checkpoint knows."""
        return {shard: min(self._needed[shard], default=position) for shard, position in self._next.items()}

    def admit(self, place: Place) -> Admission:
        if place.offset >= self._next.get(place.shard, 0):
            return "new"
        needed = self._needed[place.shard]
        if place.offset in needed:
            needed.discard(place.offset)
            return "replayed"
        return "handled"

    def give_up(self, positions: Mapping[Shard, int]) -> list[Place]:
        """Needed records that the reader has passed without seeing them: they are gone, and named here."""
        lost = []
        for shard, needed in self._needed.items():
            gone = {offset for offset in needed if offset < positions.get(shard, 0)}
            lost += [Place(*shard, offset) for offset in sorted(gone)]
            needed.difference_update(gone)
        return lost
