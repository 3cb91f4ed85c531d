"""Compaction keeps the latest record of every key, at its offset; deletions are seen before they vanish."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.bus.devbroker import compaction
from shared.bus.devbroker.batches import HEADER_BYTES, iter_records, read_header
from shared.bus.devbroker.log import PartitionLog
from shared.bus.devbroker.running import RunningBroker
from shared.bus.devbroker.settings import DevBrokerSettings
from tests.bus.devbroker.clients import batch, create, eventually, producer, read
from tests.bus.devbroker.test_log import NOW, policy

pytestmark = pytest.mark.timeout(60)

COMPACT = {"cleanup_policy": "compact", "segment_bytes": 400, "min_cleanable_dirty_ratio": 0}


@pytest.fixture
def open_log(tmp_path: Path) -> Callable[..., PartitionLog]:
    def opened(**configs: object) -> PartitionLog:
        log = PartitionLog(tmp_path / "0", policy(**{**COMPACT, **configs}))
        log.open(True, NOW)
        return log

    return opened


def compact(log: PartitionLog, now: int = NOW) -> bool:
    """One pass as the chores make it; whether there was anything to do."""
    history = compaction.History.load(log.folder)
    plan = compaction.plan(log, history, now)
    if plan is None:
        return False
    compaction.swap(log, compaction.run(plan, log.policy.segment_bytes))
    history.with_pass(plan, now, log.policy.delete_retention_ms).store(log.folder)
    return True


def records(log: PartitionLog) -> list[tuple[int, bytes, bool]]:
    """(offset, key, has a value) of every record in the files."""
    found: list[tuple[int, bytes, bool]] = []
    for segment in log.segments:
        for position, _ in segment.headers():
            data = segment.read(position, 0, at_least_one=True)
            found += [(record.offset, record.key or b"", record.has_value) for record in iter_records(data)]
    return found


def fill(log: PartitionLog, count: int, keys: int) -> None:
    for index in range(count):
        log.append(batch([(b"k%d" % (index % keys), b"v%d" % index + b"." * 40)]), NOW)


def test_the_latest_value_of_every_key_stays_at_its_offset(open_log: Callable[..., PartitionLog]) -> None:
    log = open_log()
    fill(log, 100, keys=5)
    active = log.active
    before, untouched = log.size, active.path.read_bytes()
    assert compact(log)
    closed = [row for row in records(log) if row[0] < active.base_offset]
    expected = {key: offset for offset, key in ((i, b"k%d" % (i % 5)) for i in range(active.base_offset))}
    assert {key: offset for offset, key, _ in closed} == expected
    assert len(closed) == 5
    assert active.path.read_bytes() == untouched
    assert log.size < before / 4
    assert log.end_offset == 100
    assert not compact(log), "there is nothing left to do"


def test_small_segments_are_merged_and_stay_readable(open_log: Callable[..., PartitionLog]) -> None:
    log = open_log()
    fill(log, 200, keys=3)
    compact(log)
    compact(log)
    assert len(log.segments) <= 4
    for start in (0, 1, 150, 199):
        data = log.read(start, 1)
        assert read_header(data).last_offset >= start
    log.close()
    again = open_log()
    assert again.end_offset == 200
    assert {key for _, key, _ in records(again)} == {b"k0", b"k1", b"k2"}


def test_a_tombstone_goes_only_after_its_retention(open_log: Callable[..., PartitionLog]) -> None:
    log = open_log(delete_retention_ms=1_000)
    log.append(batch([(b"gone", b"value")]), NOW)
    log.append(batch([(b"gone", None)]), NOW)
    fill(log, 20, keys=1)
    assert compact(log, NOW)
    assert [row for row in records(log) if row[1] == b"gone"] == [(1, b"gone", False)]
    assert not compact(log, NOW + 999)
    assert compact(log, NOW + 1_000)
    assert [row for row in records(log) if row[1] == b"gone"] == []
    assert not compact(log, NOW + 5_000)


def test_a_record_younger_than_the_lag_is_left_alone(open_log: Callable[..., PartitionLog]) -> None:
    log = open_log(min_compaction_lag_ms=1_000)
    fill(log, 50, keys=1)
    assert not compact(log, NOW + 999)
    assert compact(log, NOW + 1_000)


def test_a_merge_that_was_stopped_halfway_is_finished_by_recovery(
    open_log: Callable[..., PartitionLog],
) -> None:
    log = open_log()
    fill(log, 100, keys=50)
    closed = log.segments[:-1]
    plan = compaction.plan(log, compaction.History(), NOW)
    assert plan is not None
    old = {segment.path: segment.path.read_bytes() for segment in closed}
    compaction.swap(log, compaction.run(plan, 10**6))
    after = records(log)
    log.close()
    merged = closed[0].path
    for path, content in old.items():  # the state after the rename and before the deletions
        if path != merged:
            path.write_bytes(content)
    (log.folder / "00000000000000000000.cleaned").write_bytes(b"half")
    again = open_log()
    assert records(again) == after
    assert not list(log.folder.glob("*.cleaned"))


def test_producers_are_known_after_their_batches_were_compacted_away(
    open_log: Callable[..., PartitionLog],
) -> None:
    log = open_log()
    last = batch([(b"k0", b"mine")], producer_id=9, sequence=0)
    log.append(last, NOW)
    fill(log, 50, keys=1)
    compact(log)
    log.close()
    again = open_log()
    assert again.append(last, NOW).base_offset == 0, "taken for a new batch"


@settings(max_examples=40, deadline=None)
@given(
    writes=st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=1, max_size=80),
    passes=st.lists(st.integers(0, 79), max_size=3),
)
def test_a_reader_from_the_start_ends_with_the_same_table(
    tmp_path_factory: pytest.TempPathFactory, writes: list[tuple[int, bool]], passes: list[int]
) -> None:
    """Replaying the compacted log gives the same latest values as the whole history, whenever passes run."""
    log = PartitionLog(tmp_path_factory.mktemp("log"), policy(**COMPACT, delete_retention_ms=0))
    log.open(True, NOW)
    table: dict[bytes, int] = {}
    for index, (number, has_value) in enumerate(writes):
        key = b"k%d" % number
        log.append(batch([(key, b"x" * 60 if has_value else None)]), NOW)
        table[key] = index
        if not has_value:
            del table[key]
        if index in passes:
            compact(log, NOW + index)
    compact(log, NOW + 1_000)
    compact(log, NOW + 2_000)
    replayed: dict[bytes, int] = {}
    for offset, key, has_value in records(log):
        replayed.pop(key, None)
        if has_value:
            replayed[key] = offset
    assert replayed == table
    log.close()


@pytest.fixture
def small_segments(make_settings: Callable[..., DevBrokerSettings]) -> Iterator[RunningBroker]:
    with RunningBroker(make_settings(segment_bytes=2_000)) as running:
        yield running


def test_clients_read_a_compacted_topic(small_segments: RunningBroker) -> None:
    broker = small_segments
    create(broker.bootstrap, "c", cleanup_policy="compact", min_cleanable_dirty_ratio="0.01")
    with producer(broker.bootstrap, enable_idempotence=True) as client:
        for index in range(200):
            client.send("c", b"v%d" % index + b"." * 50, b"k%d" % (index % 4))
            if index % 10 == 9:
                client.flush()
        client.send("c", None, b"k0")
        client.flush()

    eventually(lambda: len(read(broker.bootstrap, "c", 201, timeout_s=0.7)) < 100)
    table = {record.key: record.value for record in read(broker.bootstrap, "c", 201, timeout_s=1)}
    assert table.pop(b"k0") is None
    assert {key: value.rstrip(b".") for key, value in table.items()} == {
        b"k1": b"v197",
        b"k2": b"v198",
        b"k3": b"v199",
    }


def test_a_rebuilt_batch_keeps_its_header(open_log: Callable[..., PartitionLog]) -> None:
    log = open_log()
    log.append(batch([(b"a", b"1"), (b"b", b"1"), (b"c", b"1")], producer_id=3, sequence=5), NOW)
    fill(log, 20, keys=1)
    log.append(batch([(b"a", b"2")]), NOW)
    fill(log, 20, keys=1)
    compact(log)
    data = log.read(0, 1)
    header = read_header(data)
    assert (header.base_offset, header.last_offset, header.record_count) == (0, 2, 2)
    assert (header.producer_id, header.base_sequence) == (3, 5)
    assert len(data) >= HEADER_BYTES
