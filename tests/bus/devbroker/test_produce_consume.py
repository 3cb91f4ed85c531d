"""Produce and consume with kafka-python: what goes in comes out, once, in order, with everything attached to it."""

import time
from collections.abc import Callable

import pytest
from kafka import TopicPartition
from kafka.errors import MessageSizeTooLargeError, OffsetOutOfRangeError, UnknownTopicOrPartitionError
from kafka.structs import OffsetAndMetadata

from shared.bus.devbroker.running import RunningBroker
from shared.bus.devbroker.settings import DevBrokerSettings, FlushPolicy
from tests.bus.devbroker.clients import admin, consumer, create, eventually, poll, producer, read, send

pytestmark = pytest.mark.timeout(60)


def test_records_keep_key_value_headers_timestamp_and_order(broker: RunningBroker) -> None:
    create(broker.bootstrap, "t", partitions=3, retention_ms=-1)  # the timestamps are old
    with producer(broker.bootstrap) as client:
        for index in range(300):
            client.send(
                "t",
                b"v%d" % index,
                b"k",
                [("h", b"%d" % index)],
                partition=index % 3,
                timestamp_ms=1000 + index,
            )
        client.flush(10)
    records = read(broker.bootstrap, "t", 300)
    for partition in range(3):
        mine = [record for record in records if record.partition == partition]
        assert [record.offset for record in mine] == list(range(100))
        assert [record.value for record in mine] == [b"v%d" % index for index in range(partition, 300, 3)]
        assert all(record.key == b"k" and record.timestamp == 1000 + int(record.value[1:]) for record in mine)
        assert all(dict(record.headers)["h"] == record.value[1:] for record in mine)


@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_every_acks_mode_stores(broker: RunningBroker, acks: int | str) -> None:
    create(broker.bootstrap, "t")
    with producer(broker.bootstrap, acks=acks, enable_idempotence=False) as client:
        for index in range(20):
            client.send("t", b"%d" % index)
        client.flush(10)
    assert [record.value for record in read(broker.bootstrap, "t", 20)] == [
        b"%d" % index for index in range(20)
    ]


def test_gzip_batches_pass_through(broker: RunningBroker) -> None:
    create(broker.bootstrap, "t")
    send(broker.bootstrap, "t", [b"x" * 1000] * 50, compression_type="gzip", linger_ms=20)
    assert [record.value for record in read(broker.bootstrap, "t", 50)] == [b"x" * 1000] * 50


def test_a_topic_is_never_made_by_being_asked_for(broker: RunningBroker) -> None:
    refused = pytest.raises(Exception, match="metadata|Unknown|topic")
    with producer(broker.bootstrap, max_block_ms=500, allow_auto_create_topics=True) as client, refused:
        client.send("nowhere", b"x").get(5)
    with admin(broker.bootstrap) as client, pytest.raises(UnknownTopicOrPartitionError):
        client.delete_topics(["nowhere"])


def test_five_megabytes_go_through_a_raised_limit(broker: RunningBroker) -> None:
    create(broker.bootstrap, "big", max_message_bytes=6_000_000)
    value = bytes(range(256)) * 20_480
    send(broker.bootstrap, "big", [value, b"small"], max_request_size=7_000_000)
    records = read(broker.bootstrap, "big", 2, max_partition_fetch_bytes=1_000_000)
    assert [record.value for record in records] == [value, b"small"]


def test_a_record_over_the_limit_is_refused_and_the_next_one_is_taken(broker: RunningBroker) -> None:
    create(broker.bootstrap, "t")
    with pytest.raises(MessageSizeTooLargeError):
        send(broker.bootstrap, "t", [b"x" * 1_100_000], max_request_size=5_000_000)
    create(broker.bootstrap, "tiny", max_message_bytes=500)
    with pytest.raises(MessageSizeTooLargeError):
        send(broker.bootstrap, "tiny", [b"x" * 600])
    assert send(broker.bootstrap, "tiny", [b"x" * 100]) == [0]


def test_an_offset_out_of_range_is_told(broker: RunningBroker) -> None:
    create(broker.bootstrap, "t")
    send(broker.bootstrap, "t", [b"x"])
    with consumer(broker.bootstrap, auto_offset_reset="none") as client:
        partition = TopicPartition("t", 0)
        client.assign([partition])
        client.seek(partition, 7)
        with pytest.raises(OffsetOutOfRangeError):
            for _ in range(50):
                client.poll(timeout_ms=100)


def test_offsets_are_found_by_time(broker: RunningBroker) -> None:
    create(broker.bootstrap, "t", retention_ms=-1)  # the timestamps are old
    with producer(broker.bootstrap, linger_ms=50) as client:
        for index in range(100):
            client.send("t", b"%d" % index, timestamp_ms=5_000 + 10 * index)
        client.flush(10)
    partition = TopicPartition("t", 0)
    with consumer(broker.bootstrap) as client:
        found = client.offsets_for_times({partition: 5_255})[partition]
        assert (found.offset, found.timestamp) == (26, 5_260)
        assert client.offsets_for_times({partition: 10_000})[partition] is None
        assert client.beginning_offsets([partition]) == {partition: 0}
        assert client.end_offsets([partition]) == {partition: 100}


def test_log_append_time_is_the_brokers_clock_and_the_crc_stays_right(broker: RunningBroker) -> None:
    create(broker.bootstrap, "t", message_timestamp_type="LogAppendTime")
    before = int(time.time() * 1000)
    with producer(broker.bootstrap) as client:
        answer = client.send("t", b"x", timestamp_ms=1).get(10)
    (record,) = read(broker.bootstrap, "t", 1, check_crcs=True)
    assert before <= record.timestamp <= int(time.time() * 1000)
    assert record.timestamp_type == 1
    assert answer.timestamp == record.timestamp


def test_a_fetch_waits_for_data_and_wakes_on_it(broker: RunningBroker) -> None:
    create(broker.bootstrap, "t")
    with (
        consumer(broker.bootstrap, "t", fetch_max_wait_ms=5_000) as reader,
        producer(broker.bootstrap) as writer,
    ):
        reader.poll(timeout_ms=300)  # a fetch now waits in the broker
        started = time.monotonic()
        writer.send("t", b"x").get(10)
        while not reader.poll(timeout_ms=1_000):
            pass
        assert time.monotonic() - started < 2, "the waiting fetch was not woken"


def test_flush_always_stores_too(make_settings: Callable[..., DevBrokerSettings]) -> None:
    with RunningBroker(make_settings(flush=FlushPolicy.ALWAYS)) as broker:
        create(broker.bootstrap, "t")
        assert send(broker.bootstrap, "t", [b"a", b"b"]) == [0, 1]


def test_everything_is_there_after_a_clean_restart(make_settings: Callable[..., DevBrokerSettings]) -> None:
    settings = make_settings()
    with RunningBroker(settings) as broker:
        create(broker.bootstrap, "t", 2, retention_ms=123_456_789)
        send(broker.bootstrap, "t", [b"one", b"two"])
    with RunningBroker(settings) as broker:
        assert send(broker.bootstrap, "t", [b"three"]) == [2]
        assert [record.value for record in read(broker.bootstrap, "t", 3)] == [b"one", b"two", b"three"]
        with consumer(broker.bootstrap) as client:
            assert client.partitions_for_topic("t") == {0, 1}


@pytest.mark.parametrize("version", [(0, 11), (1, 0), (2, 1), (2, 4), (2, 8), (3, 3), (4, 0)])
def test_older_protocol_versions_are_spoken_too(broker: RunningBroker, version: tuple[int, ...]) -> None:
    """What a client of that Kafka version sends: produce, groups, commits, lookups."""
    create(broker.bootstrap, "t")
    send(broker.bootstrap, "t", [b"a", b"b", b"c"], api_version=version, enable_idempotence=False)
    partition = TopicPartition("t", 0)
    with consumer(broker.bootstrap, "t", group_id="g", api_version=version) as client:
        records = eventually(lambda: poll(client, 200))
        assert [record.value for record in records[partition]] == [b"a", b"b", b"c"]
        client.commit({partition: OffsetAndMetadata(2, "note", -1)})
        assert client.committed(partition, metadata=True).metadata == "note"
        assert client.end_offsets([partition]) == {partition: 3}
        assert client.offsets_for_times({partition: 0})[partition].offset == 0


def test_a_fetch_that_waits_on_a_deleted_topic_is_told(broker: RunningBroker) -> None:
    create(broker.bootstrap, "t")
    with (
        consumer(broker.bootstrap, "t", fetch_max_wait_ms=20_000) as reader,
        admin(broker.bootstrap) as client,
    ):
        reader.poll(timeout_ms=300)  # a fetch now waits in the broker
        client.delete_topics(["t"])
        create(broker.bootstrap, "t")
        send(broker.bootstrap, "t", [b"new"])
        assert eventually(lambda: reader.poll(timeout_ms=200))[TopicPartition("t", 0)][0].value == b"new"
