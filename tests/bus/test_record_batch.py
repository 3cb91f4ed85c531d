"""Batches are read as kafka-python reads them, whatever is in them; bytes that are no batch raise."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka import KafkaConsumer
from kafka.consumer.fetcher import Fetcher
from kafka.errors import CorruptRecordError
from kafka.record.default_records import DefaultRecordBatchBuilder
from kafka.record.legacy_records import LegacyRecordBatchBuilder
from kafka.record.memory_records import MemoryRecords
from kafka.structs import TopicPartition

from shared.bus.client_quirks import read_raw_records
from shared.bus.delivery import RawRecord
from shared.bus.record_batch import BatchFrame, read_records
from shared.settings import BusSettings
from tests.brokers import Broker
from tests.bus.parts import raw_record

PLACE = TopicPartition("t.rewards", 3)
GZIP = 1
LOG_APPEND_TIME_BIT = 0x08

bodies = st.none() | st.binary(max_size=200) | st.integers(0, 20_000).map(bytes)
headers = st.lists(st.tuples(st.text(max_size=90), st.none() | st.binary(max_size=90)), max_size=5)
records = st.lists(
    st.tuples(st.integers(-(1 << 40), 1 << 41), bodies, bodies, headers), min_size=1, max_size=80
)


class Library:
    """A fetcher without a connection: how a consumer of either kind reads one partition's bytes."""

    def __init__(self, raw: bool) -> None:
        self.config = dict(Fetcher.DEFAULT_CONFIG)
        self._fetcher = self
        self.PartitionRecords: Any = Fetcher.PartitionRecords
        if raw:
            read_raw_records(self)

    def read(self, data: bytes, offset: int) -> tuple[list[RawRecord], int, int]:
        """Records, where to fetch on, and the leader epoch."""
        part = self.PartitionRecords(offset, PLACE, MemoryRecords(data))
        found = part.take()
        return (
            [item if isinstance(item, RawRecord) else raw_record(item) for item in found],
            part.next_fetch_offset,
            part.leader_epoch,
        )


def batch(
    base_offset: int, content: list[Any], codec: int = 0, epoch: int = 5, append_time: int | None = None
) -> bytes:
    """As a broker hands it out: the library's own batch, with what the broker writes into the header."""
    builder = DefaultRecordBatchBuilder(2, codec, False, -1, -1, -1, 1 << 30)
    for index, (timestamp, key, value, own_headers) in enumerate(content):
        assert builder.append(index, timestamp, key, value, own_headers) is not None
    data = builder.build()
    fields = list(builder.HEADER_STRUCT.unpack_from(data))
    fields[0], fields[2] = base_offset, epoch
    if append_time is not None:
        fields[5], fields[8] = fields[5] | LOG_APPEND_TIME_BIT, append_time
    builder.HEADER_STRUCT.pack_into(data, 0, *fields)
    from kafka.record.util import calc_crc32c

    fields[4] = calc_crc32c(memoryview(data)[builder.ATTRIBUTES_OFFSET :])
    builder.HEADER_STRUCT.pack_into(data, 0, *fields)
    return bytes(data)


@settings(max_examples=150, deadline=None)
@given(
    content=st.lists(records, min_size=1, max_size=3),
    base=st.integers(0, 1 << 60),
    codec=st.sampled_from([0, GZIP]),
    append_time=st.none() | st.integers(0, 1 << 41),
    skipped=st.integers(0, 40),
)
def test_the_same_records_as_the_library_reads(
    content: list[Any], base: int, codec: int, append_time: int | None, skipped: int
) -> None:
    """`skipped`: a fetch may start in the middle of a batch."""
    starts = itertools.accumulate((len(part) for part in content), initial=base)
    data = b"".join(
        batch(start, part, codec, append_time=append_time)
        for start, part in zip(starts, content, strict=False)
    )
    assert Library(raw=True).read(data, base + skipped) == Library(raw=False).read(data, base + skipped)


def test_a_poll_that_takes_a_part_goes_on_behind_it() -> None:
    content = [(1000 + index, b"k", bytes([index]), []) for index in range(10)]
    part = Library(raw=True).PartitionRecords(70, PLACE, MemoryRecords(batch(70, content)))
    assert [record.offset for record in part.take(4)] == [70, 71, 72, 73]
    assert part.next_fetch_offset == 74
    assert [record.offset for record in part.take()] == list(range(74, 80))
    assert part.next_fetch_offset == 80
    assert not part


def test_old_formats_are_read_too() -> None:
    for magic in (0, 1):
        builder = LegacyRecordBatchBuilder(magic, 0, 1 << 20)
        for index in range(3):
            builder.append(index, 1000 + index, b"k", b"body", [])
        data = bytes(builder.build())
        assert Library(raw=True).read(data, 0) == Library(raw=False).read(data, 0)


def test_a_broken_batch_raises_and_what_came_before_it_is_kept() -> None:
    good, bad = (batch(offset, [(1000, b"k", b"body" * 20, [])] * 3) for offset in (10, 13))
    torn = bad[:-1] + bytes([bad[-1] ^ 1])
    part = Library(raw=True).PartitionRecords(10, PLACE, MemoryRecords(good + torn))
    assert [record.offset for record in part.take()] == [10, 11, 12]
    assert part.next_fetch_offset == 13
    with pytest.raises(CorruptRecordError, match=r"partition=3\) at 13 fails its checksum"):
        part.take()


@settings(max_examples=300, deadline=None)
@given(content=records, cut=st.integers(1, 30), position=st.integers(0, 10_000), byte=st.integers(0, 255))
def test_bytes_that_are_no_records_raise_what_is_promised(
    content: list[Any], cut: int, position: int, byte: int
) -> None:
    body = batch(0, content)[DefaultRecordBatchBuilder.HEADER_STRUCT.size :]
    frame = BatchFrame("t", 0, 0, content[0][0], None, len(content))
    assert len(read_records(frame, body)) == len(content)
    for wrong in (body[: -min(cut, len(body))], body + b"\0"):
        with pytest.raises((ValueError, IndexError)):
            read_records(frame, wrong)
    at = position % len(body)
    changed = body[:at] + bytes([byte]) + body[at + 1 :]
    try:
        read = read_records(frame, changed)
    except (ValueError, IndexError):
        return
    assert len(read) == len(content)


def test_a_real_consumer_returns_raw_records(broker: Broker, make_settings: Any) -> None:
    """The private names that this hangs on are where they were."""
    from shared.bus.connect import consumer_options
    from shared.bus.topics import names
    from tests.bus.parts import send_bytes

    made = make_settings(bus={"partitions": 1})
    topic = names(made).rewards
    send_bytes(made, topic, b"body", [("schema", b"x"), ("empty", b"")])
    consumer = KafkaConsumer(**consumer_options(BusSettings(bootstrap_servers=broker.bootstrap), "test-raw"))
    try:
        read_raw_records(consumer)
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek(TopicPartition(topic, 0), 0)
        [found] = consumer.poll(timeout_ms=5000)[TopicPartition(topic, 0)]
    finally:
        consumer.close()
    assert isinstance(found, RawRecord)
    assert found[:3] == (topic, 0, 0)
    assert found[4:] == (b"k", b"body", [("schema", b"x"), ("empty", b"")])
