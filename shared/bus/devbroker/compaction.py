"""Compaction: of every key in the closed segments keep the latest record, offsets unchanged.

Invariant: the active segment is never touched; a stop at any moment leaves either the old or the new files, or both
sides of a merge that recovery tells apart by their offsets; a tombstone outlives every older record of its key.
Source: https://kafka.apache.org/documentation/#compaction
"""

import hashlib
import json
import shutil
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

from shared.bus.devbroker.batches import BatchHeader, Record, can_decompress, iter_records, rebuilt
from shared.bus.devbroker.files import replace_file
from shared.bus.devbroker.log import PartitionLog, sync_file
from shared.bus.devbroker.segment import Segment

_HISTORY_FILE = "compaction.json"
CLEANED_SUFFIX = ".cleaned"


@dataclass(frozen=True)
class History:
    """When which offsets were compacted first: (end offset, milliseconds) of each pass, oldest first.

    A tombstone may go `delete.retention.ms` after the first pass that saw it, so that a reader that was on its way
    still learns of the deletion.
    """

    passes: tuple[tuple[int, int], ...] = ()
    dropped_below: int = 0  # tombstones below this offset are gone already

    @classmethod
    def load(cls, folder: Path) -> "History":
        path = folder / _HISTORY_FILE
        if not path.exists():
            return cls()
        stored = json.loads(path.read_text())
        passes = tuple((int(until), int(at)) for until, at in stored["passes"])
        return cls(passes, int(stored["dropped_below"]))

    def store(self, folder: Path) -> None:
        content = {"passes": self.passes, "dropped_below": self.dropped_below}
        replace_file(folder / _HISTORY_FILE, json.dumps(content).encode())

    @property
    def cleaned_until(self) -> int:
        return self.passes[-1][0] if self.passes else 0

    def may_drop_tombstones_below(self, now_ms: int, retention_ms: int) -> int:
        """The offset below which tombstones have been kept long enough."""
        old_enough = [until for until, at in self.passes if now_ms - at >= retention_ms]
        return max(old_enough, default=0)

    def with_pass(self, plan: "Plan", now_ms: int, retention_ms: int) -> "History":
        """After a pass. Older passes that let tombstones go are folded into the last of them."""
        old = [row for row in self.passes if now_ms - row[1] >= retention_ms]
        young = [row for row in self.passes if now_ms - row[1] < retention_ms]
        return History((*old[-1:], *young, (plan.until, now_ms)), plan.drop_tombstones_below)


@dataclass(frozen=True)
class Plan:
    """The segments of one pass, in order, and which tombstones may go."""

    segments: tuple[Segment, ...]
    drop_tombstones_below: int
    last_batches: Set[int]  # base offsets of the producers' latest batches, whose headers must stay
    until: int  # the offset behind the last segment


def plan(log: PartitionLog, history: History, now_ms: int) -> Plan | None:
    """What to compact now, or None when it isn't worth it."""
    policy = log.policy
    if not policy.compact:
        return None
    chosen: list[Segment] = []
    for segment in log.segments[:-1]:
        if policy.min_compaction_lag_ms and now_ms - segment.max_timestamp < policy.min_compaction_lag_ms:
            break
        chosen.append(segment)
    total = sum(segment.size for segment in chosen)
    dirty = sum(segment.size for segment in chosen if segment.next_offset > history.cleaned_until)
    droppable = history.may_drop_tombstones_below(now_ms, policy.delete_retention_ms)
    enough = dirty > 0 and dirty >= total * policy.min_cleanable_dirty_ratio
    if not enough and not (total and droppable > history.dropped_below):
        return None
    until = max(history.cleaned_until, chosen[-1].next_offset)
    return Plan(tuple(chosen), droppable, log.producers.last_base_offsets(), until)


def run(plan: Plan, segment_bytes: int) -> list[tuple[list[Segment], Path]]:
    """Write the cleaned files; safe to call in a thread, it only reads closed segments.

    Returns groups of old segments with the file that replaces them.
    """
    latest = _latest_offsets(plan.segments)
    results: list[tuple[list[Segment], Path]] = []
    for segment in plan.segments:
        target = segment.path.with_suffix(CLEANED_SUFFIX)
        with target.open("wb") as file:
            for batch, header in _batches(segment):
                file.write(_cleaned(batch, header, latest, plan))
        if results and _size(results[-1][1]) + _size(target) <= segment_bytes:
            results[-1][0].append(segment)  # neighbours that fit into one segment become one file
            _move_to_end_of(results[-1][1], target)
        else:
            results.append(([segment], target))
    for _, target in results:
        sync_file(target)
    return results


def _size(path: Path) -> int:
    return path.stat().st_size


def _move_to_end_of(target: Path, source: Path) -> None:
    with target.open("ab") as file, source.open("rb") as content:
        shutil.copyfileobj(content, file)
    source.unlink()


def swap(log: PartitionLog, results: list[tuple[list[Segment], Path]]) -> None:
    """Put the cleaned files in place, oldest first. Groups whose segments were deleted meanwhile are dropped."""
    for group, cleaned in results:
        if all(segment in log.segments for segment in group):
            log.replace_segments(group, cleaned)
        else:
            cleaned.unlink(missing_ok=True)


def _digest(key: bytes) -> bytes:
    return hashlib.blake2b(key, digest_size=16).digest()


def _batches(segment: Segment) -> Iterator[tuple[bytes, BatchHeader]]:
    for position, header in segment.headers():
        yield segment.read(position, 0, at_least_one=True), header


def _latest_offsets(segments: Sequence[Segment]) -> dict[bytes, int]:
    """The last offset of every key, by the key's digest."""
    latest: dict[bytes, int] = {}
    for segment in segments:
        for batch, header in _batches(segment):
            if can_decompress(header.codec):
                latest.update(
                    (_digest(record.key), record.offset)
                    for record in iter_records(batch)
                    if record.key is not None
                )
    return latest


def _cleaned(batch: bytes, header: BatchHeader, latest: dict[bytes, int], plan: Plan) -> bytes:
    if not can_decompress(header.codec):
        return batch  # its keys can't be seen: keep it whole
    records = list(iter_records(batch))
    kept = [record for record in records if _stays(record, latest, plan)]
    if kept and len(kept) == len(records):
        return batch
    if kept or header.base_offset in plan.last_batches:
        return rebuilt(batch, kept)
    return b""


def _stays(record: Record, latest: dict[bytes, int], plan: Plan) -> bool:
    if record.key is None or latest[_digest(record.key)] != record.offset:
        return False
    return record.has_value or record.offset >= plan.drop_tombstones_below
