"""The log on its own: offsets, segments, retention, deletion, recovery; without a server."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.bus.devbroker.batches import HEADER_BYTES, BatchHeader, iter_records, read_header
from shared.bus.devbroker.codes import Code, Refusal
from shared.bus.devbroker.log import PartitionLog
from shared.bus.devbroker.settings import DevBrokerSettings
from shared.bus.devbroker.topic_configs import LogPolicy, TopicConfigs
from tests.bus.devbroker.clients import batch

NOW = 1_700_000_000_000


def policy(**configs: object) -> LogPolicy:
    overrides = {name.replace("_", "."): str(value) for name, value in configs.items()}
    return TopicConfigs(DevBrokerSettings(data_dir=Path("unused"))).policy(overrides)


@pytest.fixture
def open_log(tmp_path: Path) -> Callable[..., PartitionLog]:
    def opened(was_clean: bool = True, **configs: object) -> PartitionLog:
        log = PartitionLog(tmp_path / "0", policy(**configs))
        log.open(was_clean, NOW)
        return log

    return opened


def headers(data: bytes) -> list[BatchHeader]:
    found, position = [], 0
    while position + HEADER_BYTES <= len(data):
        found.append(read_header(data, position))
        position += found[-1].size
    assert position == len(data), "only whole batches are served"
    return found


def values(log: PartitionLog, start: int = 0) -> list[tuple[int, bytes]]:
    """(offset, key) of every record from `start` on, read in small pieces as a client would."""
    found: list[tuple[int, bytes]] = []
    while start < log.end_offset:
        data = log.read(start, 300)
        if not data:
            break
        position = 0
        for header in headers(data):
            records = iter_records(data[position : position + header.size])
            found += [(record.offset, record.key or b"") for record in records if record.offset >= start]
            position += header.size
        start = headers(data)[-1].last_offset + 1
    return found


def test_offsets_go_on_over_segments_and_restarts(open_log: Callable[..., PartitionLog]) -> None:
    log = open_log(segment_bytes=400)
    for index in range(30):
        assert (
            log.append(batch([(b"%d" % index, b"v"), (b"%d." % index, b"w")]), NOW).base_offset == 2 * index
        )
    assert len(log.segments) > 5
    expected = [(2 * i + j, b"%d" % i + b"." * j) for i in range(30) for j in range(2)]
    assert values(log) == expected
    log.close()
    again = open_log(was_clean=False, segment_bytes=400)
    assert (again.start_offset, again.end_offset) == (0, 60)
    assert values(again) == expected
    for start in (1, 17, 59):
        assert values(again, start) == expected[start:]


def test_a_large_batch_is_served_whole_whatever_the_limit(open_log: Callable[..., PartitionLog]) -> None:
    log = open_log()
    log.append(batch([(b"k", b"x" * 10_000)]), NOW)
    log.append(batch([(b"k", b"y")]), NOW)
    assert [header.base_offset for header in headers(log.read(0, 10))] == [0]
    assert log.read(0, 10, at_least_one=False) == b""
    assert log.bytes_from(0) == log.size
    assert log.bytes_from(2) == 0


def test_reading_outside_is_refused(open_log: Callable[..., PartitionLog]) -> None:
    log = open_log()
    log.append(batch([(b"k", b"v")] * 4), NOW)
    log.delete_before(2)
    for offset in (-1, 1, 5):
        with pytest.raises(Refusal) as refused:
            log.read(offset, 100)
        assert refused.value.code is Code.OFFSET_OUT_OF_RANGE
    assert log.read(4, 100) == b""
    assert [offset for offset, _ in values(log, 2)] == [2, 3]


@pytest.mark.parametrize(
    ("spoil", "code"),
    [
        (lambda data: data[:50], Code.INVALID_RECORD),
        (lambda data: data + data, Code.INVALID_RECORD),
        (lambda data: data[:-1] + bytes([data[-1] ^ 1]), Code.CORRUPT_MESSAGE),
        (lambda data: data[:16] + b"\x01" + data[17:], Code.INVALID_RECORD),
        (lambda data: data[:22] + b"\x20" + data[23:], Code.INVALID_RECORD),
        (lambda data: data[:22] + b"\x10" + data[23:], Code.INVALID_TXN_STATE),
        (lambda data: data[:57] + b"\x00\x00\x00\x05" + data[61:], Code.INVALID_RECORD),
    ],
)
def test_a_spoiled_batch_is_refused(
    open_log: Callable[..., PartitionLog], spoil: Callable[[bytes], bytes], code: Code
) -> None:
    log = open_log()
    with pytest.raises(Refusal) as refused:
        log.append(spoil(batch([(b"k", b"v")] * 3)), NOW)
    assert refused.value.code is code
    assert log.end_offset == 0


def test_a_timestamp_far_ahead_is_refused(open_log: Callable[..., PartitionLog]) -> None:
    log = open_log()
    with pytest.raises(Refusal) as refused:
        log.append(batch([(b"k", b"v")], timestamp=NOW + 3_600_001), NOW)
    assert refused.value.code is Code.INVALID_TIMESTAMP


def test_a_compacted_log_takes_no_record_without_a_key(open_log: Callable[..., PartitionLog]) -> None:
    log = open_log(cleanup_policy="compact")
    with pytest.raises(Refusal) as refused:
        log.append(batch([(b"k", b"v"), (None, b"v")]), NOW)
    assert refused.value.code is Code.INVALID_RECORD


def test_old_segments_go_by_time_the_active_one_too(open_log: Callable[..., PartitionLog]) -> None:
    log = open_log(segment_bytes=200, retention_ms=1_000)
    for index in range(10):
        log.append(batch([(b"k", b"x" * 50)], timestamp=NOW + index * 100), NOW + index * 100)
    assert log.apply_retention(NOW + 1_450) > 0
    assert 0 < log.start_offset < 10
    start = log.start_offset
    assert [offset for offset, _ in values(log, start)] == list(range(start, 10))
    log.apply_retention(NOW + 100_000)
    assert (log.start_offset, log.end_offset, log.size) == (10, 10, 0)
    log.close()
    again = open_log(segment_bytes=200)
    assert (again.start_offset, again.end_offset) == (10, 10)
    assert again.append(batch([(b"k", b"v")]), NOW).base_offset == 10


def test_old_segments_go_by_size(open_log: Callable[..., PartitionLog]) -> None:
    log = open_log(segment_bytes=200, retention_bytes=500, retention_ms=-1)
    for _ in range(20):
        log.append(batch([(b"k", b"x" * 50)]), NOW)
    log.apply_retention(NOW)
    assert 500 <= log.size <= 900
    assert log.start_offset > 0


def test_a_segment_ends_by_age(open_log: Callable[..., PartitionLog]) -> None:
    log = open_log(segment_ms=1_000)
    log.append(batch([(b"k", b"v")]), NOW)
    log.append(batch([(b"k", b"v")]), NOW + 999)
    log.append(batch([(b"k", b"v")]), NOW + 1_000)
    assert [segment.base_offset for segment in log.segments] == [0, 2]


def test_deleting_records_survives_a_restart(open_log: Callable[..., PartitionLog]) -> None:
    log = open_log(segment_bytes=200)
    for _ in range(10):
        log.append(batch([(b"k", b"x" * 50)]), NOW)
    assert log.delete_before(4) == 4
    log.close()
    again = open_log(segment_bytes=200)
    assert (again.start_offset, again.end_offset) == (4, 10)
    assert again.delete_before(-1) == 10
    assert again.size == 0
    with pytest.raises(Refusal):
        again.delete_before(11)


def test_a_full_disk_is_told_and_leaves_the_log_as_it_was(
    open_log: Callable[..., PartitionLog], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log()
    log.append(batch([(b"k", b"v")]), NOW)
    size = log.size

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.pwritev", full)
        with pytest.raises(Refusal, match="No space left") as refused:
            log.append(batch([(b"k", b"v")]), NOW)
    assert refused.value.code is Code.KAFKA_STORAGE_ERROR
    assert log.active.path.stat().st_size == log.size == size
    assert log.append(batch([(b"k", b"v")]), NOW).base_offset == 1


@settings(max_examples=60, deadline=None)
@given(
    batches=st.lists(st.tuples(st.integers(1, 5), st.integers(0, 300)), min_size=1, max_size=25),
    segment_bytes=st.integers(100, 2_000),
    cut=st.integers(0, 400),
)
def test_any_cut_leaves_a_prefix(
    tmp_path_factory: pytest.TempPathFactory, batches: list[tuple[int, int]], segment_bytes: int, cut: int
) -> None:
    """Whatever is cut off the last file, what is left is a prefix of what was written, and appending goes on."""
    folder = tmp_path_factory.mktemp("log")
    log = PartitionLog(folder, policy(segment_bytes=segment_bytes))
    log.open(True, NOW)
    for count, size in batches:
        log.append(batch([(b"k", b"x" * size)] * count), NOW)
    written = [offset for offset, _ in values(log)]
    log.close()
    last = log.active.path
    last.write_bytes(last.read_bytes()[: max(last.stat().st_size - cut, 0)])
    again = PartitionLog(folder, policy(segment_bytes=segment_bytes))
    again.open(False, NOW)
    left = [offset for offset, _ in values(again)]
    assert left == written[: len(left)]
    assert again.end_offset == len(left)
    assert again.append(batch([(b"k", b"v")]), NOW).base_offset == len(left)
    again.close()


@settings(max_examples=60, deadline=None)
@given(times=st.lists(st.integers(0, 50), min_size=1, max_size=40), asked=st.integers(0, 60))
def test_looking_up_by_time_finds_the_first_record(
    tmp_path_factory: pytest.TempPathFactory, times: list[int], asked: int
) -> None:
    log = PartitionLog(tmp_path_factory.mktemp("log"), policy(segment_bytes=500))
    log.open(True, NOW)
    for time in times:
        log.append(batch([(b"k", b"x" * 40)], timestamp=NOW + time), NOW + 100)
    found = log.offset_for_time(NOW + asked)
    expected = next((index for index, time in enumerate(times) if time >= asked), None)
    assert (None if found is None else found.offset) == expected
    latest = log.latest_time()
    assert latest is not None
    assert latest.timestamp == NOW + max(times)
    log.close()
