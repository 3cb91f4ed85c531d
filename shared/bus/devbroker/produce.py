"""Produce and InitProducerId.

Invariant: an answer without an error means that the batch was written to the kernel, or was there already.
"""

import asyncio
from typing import Any

from kafka.protocol.producer import InitProducerIdResponse, ProduceRequest, ProduceResponse

from shared.bus.devbroker.batches import ZSTD, read_header
from shared.bus.devbroker.broker import Broker
from shared.bus.devbroker.caller import Caller, CloseConnection
from shared.bus.devbroker.codes import Code, Refusal
from shared.bus.devbroker.settings import FlushPolicy
from shared.bus.devbroker.topics import Topic

_TopicAnswer = ProduceResponse.TopicProduceResponse
_PartitionAnswer = _TopicAnswer.PartitionProduceResponse


async def produce(broker: Broker, caller: Caller, request: Any) -> Any:
    """Append every partition's batch; each partition is answered on its own. Nothing is answered for acks=0."""
    if request.acks not in (-1, 0, 1):
        return refuse_produce(request, Code.INVALID_REQUIRED_ACKS)
    if request.transactional_id is not None:
        return refuse_produce(request, Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    topics = []
    failed = False
    for asked in request.topic_data:
        answers = [_append(broker, caller, asked, part) for part in asked.partition_data]
        failed = failed or any(answer.error_code for answer in answers)
        topics.append(_TopicAnswer(name=asked.name, topic_id=asked.topic_id, partition_responses=answers))
    if broker.settings.flush is FlushPolicy.ALWAYS:
        await _flush(broker, request)
    if request.acks == 0:
        if failed:
            raise CloseConnection(
                "a batch sent with acks=0 was refused"
            )  # the only way to tell, as Kafka does
        return None
    return ProduceResponse(responses=topics)


def _append(broker: Broker, caller: Caller, asked: Any, part: Any) -> Any:
    try:
        topic: Topic = broker.topics.find(asked.name, asked.topic_id)
        log = broker.topics.log(topic.name, part.index)
        records = part.records or b""
        if caller.version < 7 and len(records) > 61 and read_header(records).codec == ZSTD:
            raise Refusal(Code.UNSUPPORTED_COMPRESSION_TYPE, "zstd needs Produce v7 or later")
        appended = log.append(records, broker.clock())
    except Refusal as refusal:
        return _PartitionAnswer(
            index=part.index,
            error_code=refusal.code,
            base_offset=-1,
            error_message=str(refusal),
            record_errors=[],
        )
    return _PartitionAnswer(
        index=part.index,
        error_code=Code.NONE,
        base_offset=appended.base_offset,
        log_append_time_ms=appended.append_time,
        log_start_offset=log.start_offset,
        record_errors=[],
    )


async def _flush(broker: Broker, request: Any) -> None:
    for asked in request.topic_data:
        for part in asked.partition_data:
            try:
                topic = broker.topics.find(asked.name, asked.topic_id)
                log = broker.topics.log(topic.name, part.index)
            except Refusal:
                continue  # answered as such already
            await asyncio.to_thread(log.flush)


def refuse_produce(request: ProduceRequest, code: Code) -> Any:
    """The same error for every partition of a request."""
    return ProduceResponse(
        responses=[
            _TopicAnswer(
                name=asked.name,
                topic_id=asked.topic_id,
                partition_responses=[
                    _PartitionAnswer(index=part.index, error_code=code, base_offset=-1, record_errors=[])
                    for part in asked.partition_data
                ],
            )
            for asked in request.topic_data
        ]
    )


async def init_producer_id(broker: Broker, caller: Caller, request: Any) -> Any:
    """Hand out a producer id."""
    if request.transactional_id is not None:
        return refuse_init_producer_id(request, Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    return InitProducerIdResponse(
        error_code=Code.NONE, producer_id=broker.identity.next_producer_id(), producer_epoch=0
    )


def refuse_init_producer_id(request: Any, code: Code) -> Any:
    return InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)
