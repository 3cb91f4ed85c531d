"""Topics, partitions, settings and records through the admin client, with the refusals that Kafka gives."""

from collections.abc import Callable

import pytest
from kafka import TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, NewPartitions, NewTopic
from kafka.errors import (
    InvalidConfigurationError,
    InvalidPartitionsError,
    InvalidReplicationFactorError,
    InvalidTopicError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)

from shared.bus.devbroker.running import RunningBroker
from shared.bus.devbroker.settings import DevBrokerSettings
from tests.bus.devbroker.clients import admin, consumer, create, read, send

pytestmark = pytest.mark.timeout(60)


def test_a_topic_is_made_described_and_deleted(broker: RunningBroker) -> None:
    with admin(broker.bootstrap) as client:
        client.create_topics([NewTopic("t", 3, 1)])
        assert client.list_topics() == ["t"]
        (described,) = client.describe_topics(["t"])
        assert len(described["partitions"]) == 3
        client.delete_topics(["t"])
        assert client.list_topics() == []
        client.create_topics([NewTopic("t", 1, 1)])
    assert send(broker.bootstrap, "t", [b"new"]) == [0], "nothing of the old topic is left"


@pytest.mark.parametrize(
    ("topic", "error"),
    [
        (NewTopic("there", 1, 1), TopicAlreadyExistsError),
        (NewTopic("no spaces", 1, 1), InvalidTopicError),
        (NewTopic("x" * 250, 1, 1), InvalidTopicError),
        (NewTopic("..", 1, 1), InvalidTopicError),
        (NewTopic("t", 0, 1), InvalidPartitionsError),
        (NewTopic("t", 1, 3), InvalidReplicationFactorError),
        (NewTopic("t", 1, 1, topic_configs={"no.such.thing": "1"}), InvalidConfigurationError),
        (NewTopic("t", 1, 1, topic_configs={"retention.ms": "soon"}), InvalidConfigurationError),
        (NewTopic("t", 1, 1, topic_configs={"cleanup.policy": "burn"}), InvalidConfigurationError),
    ],
)
def test_a_bad_topic_is_refused(broker: RunningBroker, topic: NewTopic, error: type[Exception]) -> None:
    create(broker.bootstrap, "there")
    with admin(broker.bootstrap) as client:
        with pytest.raises(error):
            client.create_topics([topic])
        assert client.list_topics() == ["there"]


def test_validate_only_makes_nothing(broker: RunningBroker) -> None:
    with admin(broker.bootstrap) as client:
        client.create_topics([NewTopic("t", 1, 1)], validate_only=True)
        assert client.list_topics() == []


def test_partitions_are_added_and_seen_by_a_consumer(broker: RunningBroker) -> None:
    create(broker.bootstrap, "t", 1)
    with admin(broker.bootstrap) as client:
        client.create_partitions({"t": NewPartitions(4)})
        with pytest.raises(InvalidPartitionsError):
            client.create_partitions({"t": NewPartitions(2)})
    with consumer(broker.bootstrap) as client:
        assert client.partitions_for_topic("t") == {0, 1, 2, 3}
    assert send(broker.bootstrap, "t", [b"x"]) == [0]


def settings_of(bootstrap: str, topic: str) -> dict[str, str]:
    with admin(bootstrap) as client:
        found = client.describe_configs(
            [ConfigResource(ConfigResourceType.TOPIC, topic, None)], config_filter="all"
        )
        return {name: entry["value"] for name, entry in found["topic"][topic].items()}


def test_settings_change_and_stay(make_settings: Callable[..., DevBrokerSettings]) -> None:
    settings = make_settings()
    with RunningBroker(settings) as broker:
        create(broker.bootstrap, "t", 1, min_insync_replicas=2)
        with admin(broker.bootstrap) as client:
            client.alter_configs(
                [ConfigResource(ConfigResourceType.TOPIC, "t", {"max.message.bytes": "300"})]
            )
            answer = client.alter_configs(
                [ConfigResource(ConfigResourceType.TOPIC, "t", {"retention.ms": "x"})]
            )
            assert "Invalid value x for configuration retention.ms" in str(answer)
        with pytest.raises(Exception, match="10|large"):
            send(broker.bootstrap, "t", [b"x" * 400])
    with RunningBroker(settings) as broker:
        found = settings_of(broker.bootstrap, "t")
        assert found["max.message.bytes"] == "300"
        assert found["min.insync.replicas"] == "2"
        assert found["retention.ms"] == str(7 * 86_400_000)


def test_records_are_deleted_up_to_an_offset(broker: RunningBroker) -> None:
    create(broker.bootstrap, "t")
    send(broker.bootstrap, "t", [b"%d" % index for index in range(10)])
    partition = TopicPartition("t", 0)
    with admin(broker.bootstrap) as client:
        client.delete_records({partition: 6})
    assert [record.offset for record in read(broker.bootstrap, "t", 4)] == [6, 7, 8, 9]
    with consumer(broker.bootstrap) as client:
        assert client.beginning_offsets([partition]) == {partition: 6}


def test_a_missing_topic_is_told(broker: RunningBroker) -> None:
    with admin(broker.bootstrap) as client:
        with pytest.raises(UnknownTopicOrPartitionError):
            client.delete_topics(["nothing"])
        with pytest.raises(UnknownTopicOrPartitionError):
            client.create_partitions({"nothing": NewPartitions(3)})


def test_the_cluster_is_one_node_with_a_lasting_id(make_settings: Callable[..., DevBrokerSettings]) -> None:
    settings = make_settings()
    seen = set()
    for _ in range(2):
        with RunningBroker(settings) as broker, admin(broker.bootstrap) as client:
            described = client.describe_cluster()
            seen.add(described["cluster_id"])
            assert [node["port"] for node in described["brokers"]] == [broker.port]
    assert len(seen) == 1
