"""The same broker under librdkafka: a second implementation of the protocol that was not written beside ours."""

import time
from collections.abc import Iterator
from typing import Any

import confluent_kafka as ck
import pytest
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from shared.bus.devbroker.faults import FaultAction, FaultRule
from shared.bus.devbroker.running import RunningBroker
from tests.bus.devbroker.clients import create, eventually, read, send

pytestmark = pytest.mark.timeout(60)
QUIET = {"log_level": 0}


def produced(bootstrap: str, topic: str, values: list[bytes], **config: Any) -> list[int]:
    """Offsets in the order of delivery; config names have underscores for dots."""
    offsets: list[int] = []

    def on_delivery(error: Any, message: Any) -> None:
        assert error is None, error
        offsets.append(message.offset())

    dotted = {name.replace("_", "."): value for name, value in config.items()}
    client = ck.Producer({"bootstrap.servers": bootstrap, **QUIET, **dotted})
    for value in values:
        client.produce(topic, value=value, key=b"k", partition=0, on_delivery=on_delivery)
    assert client.flush(20) == 0
    return offsets


def member(bootstrap: str, **config: Any) -> ck.Consumer:
    dotted = {name.replace("_", "."): value for name, value in config.items()}
    return ck.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "g",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 2_000,
            "heartbeat.interval.ms": 100,
            "fetch.wait.max.ms": 50,
            **QUIET,
            **dotted,
        }
    )


def messages(client: ck.Consumer, count: int, timeout_s: float = 10) -> Iterator[ck.Message]:
    deadline = time.monotonic() + timeout_s
    while count and time.monotonic() < deadline:
        message = client.poll(0.1)
        if message is not None:
            assert message.error() is None, message.error()
            count -= 1
            yield message


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_codec_goes_through(broker: RunningBroker, codec: str) -> None:
    create(broker.bootstrap, "t")
    values = [b"%d" % index * 50 for index in range(100)]
    assert produced(broker.bootstrap, "t", values, compression_type=codec, linger_ms=50) == list(range(100))
    client = member(broker.bootstrap)
    client.subscribe(["t"])
    assert [message.value() for message in messages(client, 100)] == values
    client.close()


def test_records_cross_between_the_two_clients(broker: RunningBroker) -> None:
    create(broker.bootstrap, "t")
    produced(broker.bootstrap, "t", [b"from librdkafka"])
    send(broker.bootstrap, "t", [b"from kafka-python"], compression_type="gzip")
    expected = [b"from librdkafka", b"from kafka-python"]
    assert [record.value for record in read(broker.bootstrap, "t", 2)] == expected
    client = member(broker.bootstrap)
    client.subscribe(["t"])
    assert [message.value() for message in messages(client, 2)] == expected
    client.close()


def test_an_idempotent_producer_survives_dropped_answers(broker: RunningBroker) -> None:
    create(broker.bootstrap, "t")
    rule = broker.faults.add(FaultRule(FaultAction.DROP_RESPONSE, api="Produce", count=2))
    values = [b"%d" % index for index in range(500)]
    produced(
        broker.bootstrap, "t", values, enable_idempotence=True, batch_num_messages=20, retry_backoff_ms=20
    )
    assert rule.hits == 2
    assert [record.value for record in read(broker.bootstrap, "t", 600, timeout_s=2)] == values


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_members_share_and_take_over(broker: RunningBroker, strategy: str) -> None:
    create(broker.bootstrap, "t", 4)
    one = member(broker.bootstrap, partition_assignment_strategy=strategy)
    two = member(broker.bootstrap, partition_assignment_strategy=strategy)
    one.subscribe(["t"])
    two.subscribe(["t"])

    def owned() -> list[list[int]]:
        for client in (one, two):
            client.poll(0.02)
        return [sorted(part.partition for part in client.assignment()) for client in (one, two)]

    def shared() -> bool:
        mine, yours = owned()
        return sorted(mine + yours) == [0, 1, 2, 3] and bool(mine) and bool(yours)

    eventually(shared, 15)
    two.close()
    eventually(lambda: one.poll(0.02) is None and len(one.assignment()) == 4, 15)
    one.close()


def test_commits_carry_metadata(broker: RunningBroker) -> None:
    create(broker.bootstrap, "t")
    produced(broker.bootstrap, "t", [b"x"] * 5)
    client = member(broker.bootstrap)
    client.subscribe(["t"])
    assert len(list(messages(client, 5))) == 5
    client.commit(offsets=[ck.TopicPartition("t", 0, 3, metadata="note")], asynchronous=False)
    (committed,) = client.committed([ck.TopicPartition("t", 0)])
    assert (committed.offset, committed.metadata) == (3, "note")
    client.close()


def test_administration(broker: RunningBroker) -> None:
    client = AdminClient({"bootstrap.servers": broker.bootstrap, **QUIET})
    client.create_topics([NewTopic("t", 1, 1, config={"cleanup.policy": "compact"})])["t"].result(10)
    client.create_partitions([NewPartitions("t", 3)])["t"].result(10)
    assert len(client.list_topics("t", timeout=10).topics["t"].partitions) == 3
    client.delete_topics(["t"])["t"].result(10)
    missing = client.list_topics("t", timeout=10).topics["t"]
    assert missing.error.code() == ck.KafkaError.UNKNOWN_TOPIC_OR_PART


def test_a_transactional_producer_is_told_no(broker: RunningBroker) -> None:
    client = ck.Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "x", **QUIET})
    with pytest.raises(ck.KafkaException) as refused:
        client.init_transactions(5)
    assert refused.value.args[0].code() == ck.KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
