"""What consumer groups leave behind: committed offsets, and the membership of running groups.

Invariant: a commit that was answered is in the journal; the journal read from its start gives the same offsets again.
One request's commits are one entry, so that they are kept together or not at all.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

from shared.bus.devbroker.journal import Entry, Journal

TopicPartition = tuple[str, int]


class Committed(NamedTuple):
    """A committed offset with the metadata string that the consumer attached."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    committed_at_ms: int = 0


class GroupStore:
    """Committed offsets by group, topic and partition, and a snapshot of every group that has members."""

    _REWRITE_BYTES = 8 * 1024 * 1024

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._offsets: dict[str, dict[TopicPartition, Committed]] = {}
        self._snapshots: dict[str, dict[str, Any]] = {}
        self._size_after_rewrite = 0

    def open(self) -> None:
        """Read the journal and compact it."""
        for entry in self._journal.open():
            self._apply(entry)
        self._rewrite()

    def close(self) -> None:
        self._journal.close()

    def groups(self) -> set[str]:
        return self._offsets.keys() | self._snapshots.keys()

    def offsets(self, group_id: str) -> dict[TopicPartition, Committed]:
        return dict(self._offsets.get(group_id, {}))

    def get(self, group_id: str, topic: str, partition: int) -> Committed | None:
        return self._offsets.get(group_id, {}).get((topic, partition))

    def snapshots(self) -> dict[str, dict[str, Any]]:
        return dict(self._snapshots)

    def commit(self, group_id: str, offsets: dict[TopicPartition, Committed]) -> None:
        """Raises Refusal(KAFKA_STORAGE_ERROR)."""
        rows = [[topic, partition, *committed] for (topic, partition), committed in offsets.items()]
        self._write({"group": group_id, "commit": rows})

    def forget_offsets(self, group_id: str, partitions: Iterable[TopicPartition]) -> None:
        gone = [list(key) for key in partitions if key in self._offsets.get(group_id, {})]
        if gone:
            self._write({"group": group_id, "forget": gone})

    def forget_topic(self, topic: str) -> None:
        """Drop every group's offsets of a topic that was deleted."""
        for group_id, offsets in list(self._offsets.items()):
            self.forget_offsets(group_id, [key for key in offsets if key[0] == topic])

    def forget_group(self, group_id: str) -> None:
        self._write({"group": group_id, "gone": True})

    def save_snapshot(self, group_id: str, snapshot: dict[str, Any] | None) -> None:
        """Remember a group's members (JSON values only), or that it has none."""
        if snapshot is not None or group_id in self._snapshots:
            self._write({"group": group_id, "snapshot": snapshot})

    def _write(self, entry: Entry) -> None:
        self._journal.append(entry)
        self._apply(entry)
        if self._journal.size > 2 * self._size_after_rewrite + self._REWRITE_BYTES:
            self._rewrite()

    def _apply(self, entry: Entry) -> None:
        group_id = entry["group"]
        for topic, partition, *committed in entry.get("commit", ()):
            self._offsets.setdefault(group_id, {})[topic, partition] = Committed(*committed)
        for topic, partition in entry.get("forget", ()):
            self._offsets.get(group_id, {}).pop((topic, partition), None)
        if "snapshot" in entry:
            if entry["snapshot"] is None:
                self._snapshots.pop(group_id, None)
            else:
                self._snapshots[group_id] = entry["snapshot"]
        if entry.get("gone"):
            self._offsets.pop(group_id, None)
            self._snapshots.pop(group_id, None)

    def _rewrite(self) -> None:
        entries: list[Entry] = []
        for group_id, offsets in self._offsets.items():
            rows = [[topic, partition, *committed] for (topic, partition), committed in offsets.items()]
            if rows:
                entries.append({"group": group_id, "commit": rows})
        entries += [
            {"group": group_id, "snapshot": snapshot} for group_id, snapshot in self._snapshots.items()
        ]
        self._journal.rewrite(entries)
        self._size_after_rewrite = self._journal.size
