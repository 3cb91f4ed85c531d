"""Every request that is announced, in every version of it: decoded, answered, and the answer can be read."""

import socket
import struct
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kafka.protocol import admin, consumer, metadata, producer

from shared.bus.devbroker.apis import APIS, Api
from shared.bus.devbroker.codes import Code
from shared.bus.devbroker.faults import FaultAction, FaultRule
from shared.bus.devbroker.running import RunningBroker
from shared.bus.devbroker.settings import DevBrokerSettings
from tests.bus.devbroker.clients import admin as admin_client
from tests.bus.devbroker.clients import batch, create, send

pytestmark = pytest.mark.timeout(60)

GROUP = {"group_id": "g", "generation_id": 1, "member_id": "m", "group_instance_id": None}


def samples(topic_id: uuid.UUID) -> dict[str, Callable[[int], Any]]:
    """A request of each kind about topic `t`, by version where the versions differ in more than fields."""
    fetch, produce, delete = consumer.FetchRequest, producer.ProduceRequest, admin.DeleteTopicsRequest
    commit, offsets = consumer.OffsetCommitRequest.OffsetCommitRequestTopic, consumer.OffsetFetchRequest
    create_topic = admin.CreateTopicsRequest.CreatableTopic
    describe, alter = admin.DescribeConfigsRequest, admin.AlterConfigsRequest
    by_group = offsets.OffsetFetchRequestGroup
    listed, epochs = consumer.ListOffsetsRequest.ListOffsetsTopic, consumer.OffsetForLeaderEpochRequest
    incremental, records = admin.IncrementalAlterConfigsRequest, admin.DeleteRecordsRequest.DeleteRecordsTopic
    forget = consumer.OffsetDeleteRequest.OffsetDeleteRequestTopic
    now = {"name": "t", "topic_id": topic_id}
    return {
        "Produce": lambda v: produce(
            acks=1,
            timeout_ms=100,
            transactional_id=None,
            topic_data=[
                produce.TopicProduceData(
                    **now,
                    partition_data=[
                        produce.TopicProduceData.PartitionProduceData(index=0, records=batch([(b"k", b"v")]))
                    ],
                )
            ],
        ),
        "Fetch": lambda v: fetch(
            max_wait_ms=1,
            min_bytes=0,
            topics=[
                fetch.FetchTopic(
                    topic="t",
                    topic_id=topic_id,
                    partitions=[
                        fetch.FetchTopic.FetchPartition(
                            partition=0, fetch_offset=0, partition_max_bytes=1000, current_leader_epoch=-1
                        )
                    ],
                )
            ],
        ),
        "ListOffsets": lambda v: consumer.ListOffsetsRequest(
            topics=[
                listed(
                    name="t",
                    partitions=[
                        listed.ListOffsetsPartition(partition_index=0, timestamp=-1, current_leader_epoch=-1)
                    ],
                )
            ]
        ),
        "Metadata": lambda v: metadata.MetadataRequest(
            topics=[metadata.MetadataRequest.MetadataRequestTopic(name="t", topic_id=None)]
        ),
        "OffsetCommit": lambda v: consumer.OffsetCommitRequest(
            group_id="c",
            generation_id_or_member_epoch=-1,
            member_id="",
            topics=[
                commit(
                    **now,
                    partitions=[
                        commit.OffsetCommitRequestPartition(
                            partition_index=0, committed_offset=1, committed_metadata=None
                        )
                    ],
                )
            ],
        ),
        "OffsetFetch": lambda v: offsets(
            group_id="c",
            topics=[offsets.OffsetFetchRequestTopic(name="t", partition_indexes=[0])],
            groups=[
                by_group(
                    group_id="c",
                    topics=[
                        by_group.OffsetFetchRequestTopics(name="t", topic_id=topic_id, partition_indexes=[0])
                    ],
                )
            ],
        ),
        "FindCoordinator": lambda v: metadata.FindCoordinatorRequest(key="g", coordinator_keys=["g"]),
        "JoinGroup": lambda v: consumer.JoinGroupRequest(
            group_id=f"join{v}",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=1_000,
            member_id="",
            protocol_type="consumer",
            protocols=[consumer.JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"")],
        ),
        "Heartbeat": lambda v: consumer.HeartbeatRequest(**GROUP),
        "LeaveGroup": lambda v: consumer.LeaveGroupRequest(
            group_id="g", member_id="m", members=[consumer.LeaveGroupRequest.MemberIdentity(member_id="m")]
        ),
        "SyncGroup": lambda v: consumer.SyncGroupRequest(**GROUP, assignments=[]),
        "DescribeGroups": lambda v: admin.DescribeGroupsRequest(groups=["g", "c"]),
        "ListGroups": lambda v: admin.ListGroupsRequest(states_filter=[], types_filter=[]),
        "ApiVersions": lambda v: metadata.ApiVersionsRequest(
            client_software_name="x", client_software_version="1"
        ),
        "CreateTopics": lambda v: admin.CreateTopicsRequest(
            topics=[
                create_topic(name=f"v{v}", num_partitions=1, replication_factor=1, assignments=[], configs=[])
            ],
            timeout_ms=100,
        ),
        "DeleteTopics": lambda v: delete(
            topics=[delete.DeleteTopicState(name=None, topic_id=uuid.uuid4())],
            topic_names=["no"],
            timeout_ms=1,
        ),
        "DeleteRecords": lambda v: admin.DeleteRecordsRequest(
            topics=[
                records(name="t", partitions=[records.DeleteRecordsPartition(partition_index=0, offset=0)])
            ],
            timeout_ms=1,
        ),
        "InitProducerId": lambda v: producer.InitProducerIdRequest(
            transactional_id=None, transaction_timeout_ms=1, producer_id=-1, producer_epoch=-1
        ),
        "OffsetForLeaderEpoch": lambda v: epochs(
            topics=[
                epochs.OffsetForLeaderTopic(
                    topic="t",
                    partitions=[
                        epochs.OffsetForLeaderTopic.OffsetForLeaderPartition(
                            partition=0, current_leader_epoch=-1, leader_epoch=0
                        )
                    ],
                )
            ]
        ),
        "DescribeConfigs": lambda v: describe(
            resources=[
                describe.DescribeConfigsResource(
                    resource_type=kind, resource_name=name, configuration_keys=None
                )
                for kind, name in ((2, "t"), (4, "1"))
            ],
            include_synonyms=True,
        ),
        "AlterConfigs": lambda v: alter(
            resources=[
                alter.AlterConfigsResource(
                    resource_type=2,
                    resource_name="t",
                    configs=[alter.AlterConfigsResource.AlterableConfig(name="retention.ms", value="-1")],
                )
            ]
        ),
        "CreatePartitions": lambda v: admin.CreatePartitionsRequest(
            topics=[
                admin.CreatePartitionsRequest.CreatePartitionsTopic(name="t", count=2 + v, assignments=None)
            ],
            timeout_ms=1,
        ),
        "DeleteGroups": lambda v: admin.DeleteGroupsRequest(groups_names=["nobody"]),
        "IncrementalAlterConfigs": lambda v: incremental(
            resources=[
                incremental.AlterConfigsResource(
                    resource_type=2,
                    resource_name="t",
                    configs=[
                        incremental.AlterConfigsResource.AlterableConfig(
                            name="cleanup.policy", config_operation=2, value="delete"
                        )
                    ],
                )
            ]
        ),
        "OffsetDelete": lambda v: consumer.OffsetDeleteRequest(
            group_id="c",
            topics=[forget(name="t", partitions=[forget.OffsetDeleteRequestPartition(partition_index=1)])],
        ),
        "DescribeCluster": lambda v: admin.DescribeClusterRequest(),
    }


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningBroker, uuid.UUID]]:
    settings = DevBrokerSettings(data_dir=tmp_path_factory.mktemp("versions") / "data")
    with RunningBroker(settings) as broker:
        create(broker.bootstrap, "t", retention_ms=-1)
        send(broker.bootstrap, "t", [b"x"])
        with admin_client(broker.bootstrap) as client:
            topic_id = client.describe_topics(["t"])[0]["topic_id"]
        yield broker, uuid.UUID(str(topic_id))


def receive(client: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        chunk = client.recv(count - len(data))
        assert chunk, "the broker closed the connection"
        data += chunk
    return data


def call(port: int, api: Api, version: int, request: Any) -> Any:
    request.API_VERSION = version
    request.with_header(correlation_id=77, client_id="test")
    with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
        client.sendall(request.encode(header=True, framed=True))
        (size,) = struct.unpack(">i", receive(client, 4))
        frame = receive(client, size)
    response_class = request.header.get_response_class()
    answer = response_class.decode(frame, header=True)
    assert answer.header.correlation_id == 77
    return answer


def error_codes(value: Any) -> Iterator[int]:
    """Every error code anywhere in an answer."""
    if isinstance(value, dict):
        for name, inner in value.items():
            if name == "error_code":
                yield inner
            else:
                yield from error_codes(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from error_codes(inner)


EXPECTED_ERRORS = {
    "Heartbeat": {25},
    "LeaveGroup": {0, 25},
    "SyncGroup": {25},
    "JoinGroup": {0, 79},
    "DescribeGroups": {0, 69},
    "DeleteTopics": {3, 100},
    "DeleteGroups": {69},
}


@pytest.mark.parametrize("key", sorted(APIS))
def test_every_version_is_served(served: tuple[RunningBroker, uuid.UUID], key: int) -> None:
    broker, topic_id = served
    api = APIS[key]
    sample = samples(topic_id)[api.name]
    for version in range(api.min_version, api.max_version + 1):
        answer = call(broker.port, api, version, sample(version))
        codes = set(error_codes(answer.to_dict()))
        assert codes <= EXPECTED_ERRORS.get(api.name, {0}), f"{api.name} v{version}: {answer}"


@pytest.mark.parametrize("key", [key for key in sorted(APIS) if APIS[key].refuse is not None])
def test_every_version_can_be_refused(served: tuple[RunningBroker, uuid.UUID], key: int) -> None:
    broker, topic_id = served
    api = APIS[key]
    rule = broker.faults.add(FaultRule(FaultAction.ERROR, api=api.name, code=Code.POLICY_VIOLATION))
    try:
        for version in range(api.min_version, api.max_version + 1):
            answer = call(broker.port, api, version, samples(topic_id)[api.name](version))
            assert Code.POLICY_VIOLATION in set(error_codes(answer.to_dict())), (
                f"{api.name} v{version}: {answer}"
            )
    finally:
        broker.faults.remove(rule)
