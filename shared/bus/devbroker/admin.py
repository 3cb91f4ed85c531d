"""CreateTopics, DeleteTopics, CreatePartitions and DeleteRecords.

Invariant: every topic of a request is answered on its own; a change is on disk before it is answered.
"""

from collections.abc import Callable
from typing import Any

from kafka.protocol.admin import (
    CreatePartitionsResponse,
    CreateTopicsResponse,
    DeleteRecordsResponse,
    DeleteTopicsResponse,
)

from shared.bus.devbroker.broker import Broker
from shared.bus.devbroker.caller import Caller
from shared.bus.devbroker.codes import Code, Refusal
from shared.bus.devbroker.configs_api import ConfigSource

_Created = CreateTopicsResponse.CreatableTopicResult
_CreatedConfig = _Created.CreatableTopicConfigs
_Deleted = DeleteTopicsResponse.DeletableTopicResult


async def create_topics(broker: Broker, caller: Caller, request: Any) -> Any:
    return CreateTopicsResponse(
        topics=[_create(broker, asked, request.validate_only) for asked in request.topics]
    )


def _create(broker: Broker, asked: Any, validate_only: bool) -> Any:
    try:
        partitions = _partitions_of(broker, asked)
        configs = {config.name: config.value for config in asked.configs}
        topic = broker.topics.create(asked.name, partitions, configs, broker.clock(), validate_only)
    except Refusal as refusal:
        return refused_topic(asked.name, refusal.code, str(refusal))
    configs_of = broker.topics.configs
    return _Created(
        name=topic.name,
        topic_id=topic.topic_id,
        error_code=Code.NONE,
        error_message=None,
        num_partitions=topic.partitions,
        replication_factor=1,
        configs=[
            _CreatedConfig(
                name=name,
                value=configs_of.value(topic.overrides, name),
                read_only=False,
                config_source=ConfigSource.TOPIC if name in topic.overrides else ConfigSource.DEFAULT,
                is_sensitive=False,
            )
            for name in sorted(configs_of.specs)
        ],
    )


def refused_topic(name: str, code: Code, message: str | None) -> Any:
    return _Created(name=name, error_code=code, error_message=message, configs=[])


def _partitions_of(broker: Broker, asked: Any) -> int:
    """How many partitions a new topic gets; one node can hold one replica of each."""
    if asked.assignments:
        if asked.num_partitions != -1 or asked.replication_factor != -1:
            raise Refusal(
                Code.INVALID_REQUEST,
                "with a manual assignment, partitions and replication factor must both be -1",
            )
        for assignment in asked.assignments:
            _check_replicas(broker, assignment.broker_ids)
        indexes = sorted(assignment.partition_index for assignment in asked.assignments)
        if indexes != list(range(len(indexes))):
            raise Refusal(Code.INVALID_REPLICA_ASSIGNMENT, f"partitions must be 0 to n-1, not {indexes}")
        return len(indexes)
    if asked.replication_factor not in (-1, 1):
        raise Refusal(
            Code.INVALID_REPLICATION_FACTOR,
            f"Unable to replicate the partition {asked.replication_factor} time(s): the dev broker is one node, use 1",
        )
    if asked.num_partitions == -1:
        return broker.settings.default_partitions
    return int(asked.num_partitions)


def _check_replicas(broker: Broker, broker_ids: list[int]) -> None:
    if broker_ids != [broker.settings.node_id]:
        raise Refusal(
            Code.INVALID_REPLICA_ASSIGNMENT, f"the only broker is {broker.settings.node_id}, not {broker_ids}"
        )


def refuse_create_topics(request: Any, code: Code) -> Any:
    return CreateTopicsResponse(topics=[refused_topic(asked.name, code, None) for asked in request.topics])


async def delete_topics(broker: Broker, caller: Caller, request: Any) -> Any:
    """By name, or from v6 on by id too."""
    if caller.version < 6:
        return DeleteTopicsResponse(responses=[_delete(broker, name, None) for name in request.topic_names])
    return DeleteTopicsResponse(
        responses=[_delete(broker, asked.name, asked.topic_id) for asked in request.topics]
    )


def _delete(broker: Broker, name: str | None, topic_id: Any) -> Any:
    try:
        topic = broker.topics.find(name, topic_id)
        broker.delete_topic(topic.name)
    except Refusal as refusal:
        return _Deleted(name=name, topic_id=topic_id, error_code=refusal.code, error_message=str(refusal))
    return _Deleted(name=topic.name, topic_id=topic.topic_id, error_code=Code.NONE)


async def create_partitions(broker: Broker, caller: Caller, request: Any) -> Any:
    def grow(asked: Any) -> None:
        for assignment in asked.assignments or []:
            _check_replicas(broker, assignment.broker_ids)
        broker.topics.grow(asked.name, asked.count, broker.clock(), request.validate_only)

    results = []
    for asked in request.topics:
        code, message = outcome(grow, asked)
        results.append(
            CreatePartitionsResponse.CreatePartitionsTopicResult(
                name=asked.name, error_code=code, error_message=message
            )
        )
    return CreatePartitionsResponse(results=results)


def outcome(action: Callable[[Any], None], asked: Any) -> tuple[Code, str | None]:
    """Run one entry of a request; its error code and message."""
    try:
        action(asked)
    except Refusal as refusal:
        return refusal.code, str(refusal)
    return Code.NONE, None


_RecordsTopic = DeleteRecordsResponse.DeleteRecordsTopicResult
_RecordsPartition = _RecordsTopic.DeleteRecordsPartitionResult


async def delete_records(broker: Broker, caller: Caller, request: Any) -> Any:
    """Move each log's start up to an offset; -1 means to its end."""
    topics = []
    for asked in request.topics:
        rows = []
        for part in asked.partitions:
            try:
                log = broker.topics.log(asked.name, part.partition_index)
                if not log.policy.delete:
                    raise Refusal(
                        Code.POLICY_VIOLATION, f"{asked.name} is compacted only: records are not deleted"
                    )
                low, code = log.delete_before(part.offset), Code.NONE
            except Refusal as refusal:
                low, code = -1, refusal.code
            rows.append(
                _RecordsPartition(partition_index=part.partition_index, low_watermark=low, error_code=code)
            )
        topics.append(_RecordsTopic(name=asked.name, partitions=rows))
    return DeleteRecordsResponse(topics=topics)
