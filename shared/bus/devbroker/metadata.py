"""Metadata, FindCoordinator and DescribeCluster: one node is the answer to everything.

Invariant: a client is told the address that it dialled (or the one that the settings advertise), and is never given a
topic that nobody created.
"""

from typing import Any

from kafka.protocol.admin import DescribeClusterResponse
from kafka.protocol.metadata import CoordinatorType, FindCoordinatorResponse, MetadataResponse

from shared.bus.devbroker.broker import LEADER_EPOCH, Broker
from shared.bus.devbroker.caller import Caller
from shared.bus.devbroker.codes import Code, Refusal
from shared.bus.devbroker.topics import Topic

_BrokerAnswer = MetadataResponse.MetadataResponseBroker
_TopicAnswer = MetadataResponse.MetadataResponseTopic
_PartitionAnswer = _TopicAnswer.MetadataResponsePartition
_Coordinator = FindCoordinatorResponse.Coordinator


def advertised_host(broker: Broker, caller: Caller) -> str:
    return broker.settings.advertised_host or caller.local_host


async def metadata(broker: Broker, caller: Caller, request: Any) -> Any:
    """The node and the topics that were asked for; all of them for null (an empty list in v0)."""
    if request.topics is None or (caller.version == 0 and not request.topics):
        topics = [_topic_answer(broker, topic) for topic in broker.topics.all()]
    else:
        topics = [_find_topic(broker, asked.name, asked.topic_id) for asked in request.topics]
    return _metadata_answer(broker, caller, topics)


def _metadata_answer(broker: Broker, caller: Caller, topics: list[Any]) -> Any:
    node = broker.settings.node_id
    return MetadataResponse(
        brokers=[
            _BrokerAnswer(node_id=node, host=advertised_host(broker, caller), port=broker.port, rack=None)
        ],
        cluster_id=broker.identity.cluster_id,
        controller_id=node,
        topics=topics,
        error_code=Code.NONE,
    )


def _find_topic(broker: Broker, name: str | None, topic_id: Any) -> Any:
    try:
        return _topic_answer(broker, broker.topics.find(name, topic_id))
    except Refusal as refusal:
        return _TopicAnswer(
            error_code=refusal.code, name=name, topic_id=topic_id, is_internal=False, partitions=[]
        )


def _topic_answer(broker: Broker, topic: Topic) -> Any:
    node = broker.settings.node_id
    return _TopicAnswer(
        error_code=Code.NONE,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=False,
        partitions=[
            _PartitionAnswer(
                error_code=Code.NONE,
                partition_index=partition,
                leader_id=node,
                leader_epoch=LEADER_EPOCH,
                replica_nodes=[node],
                isr_nodes=[node],
                offline_replicas=[],
            )
            for partition in range(topic.partitions)
        ],
    )


def refuse_metadata(broker: Broker, caller: Caller, request: Any, code: Code) -> Any:
    """The same error for every topic of a request."""
    topics = [
        _TopicAnswer(
            error_code=code, name=asked.name, topic_id=asked.topic_id, is_internal=False, partitions=[]
        )
        for asked in request.topics or []
    ]
    return _metadata_answer(broker, caller, topics)


async def find_coordinator(broker: Broker, caller: Caller, request: Any) -> Any:
    """This node coordinates every group. There is no coordinator for transactions, and the answer says so."""
    if request.key_type == CoordinatorType.GROUP:
        return _coordinators(broker, caller, request, Code.NONE, None)
    message = "the dev broker has no transactions and no share groups; use Apache Kafka for those"
    refused = request.key_type == CoordinatorType.TRANSACTION
    code = Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED if refused else Code.INVALID_REQUEST
    return _coordinators(broker, caller, request, code, message)


def refuse_find_coordinator(broker: Broker, caller: Caller, request: Any, code: Code) -> Any:
    return _coordinators(broker, caller, request, code, None)


def _coordinators(broker: Broker, caller: Caller, request: Any, code: Code, message: str | None) -> Any:
    found = code is Code.NONE
    node = broker.settings.node_id if found else -1
    host = advertised_host(broker, caller) if found else ""
    port = broker.port if found else -1
    if caller.version < 4:
        return FindCoordinatorResponse(
            error_code=code, error_message=message, node_id=node, host=host, port=port
        )
    return FindCoordinatorResponse(
        coordinators=[
            _Coordinator(key=key, node_id=node, host=host, port=port, error_code=code, error_message=message)
            for key in request.coordinator_keys
        ]
    )


async def describe_cluster(broker: Broker, caller: Caller, request: Any) -> Any:
    """One broker, which is the controller too."""
    node = broker.settings.node_id
    return DescribeClusterResponse(
        error_code=Code.NONE,
        endpoint_type=request.endpoint_type,
        cluster_id=broker.identity.cluster_id,
        controller_id=node,
        brokers=[
            DescribeClusterResponse.DescribeClusterBroker(
                broker_id=node,
                host=advertised_host(broker, caller),
                port=broker.port,
                rack=None,
                is_fenced=False,
            )
        ],
    )
