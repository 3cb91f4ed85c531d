"""Fetch, ListOffsets and OffsetForLeaderEpoch.

Invariant: a fetch answers with bytes as they are in the files, at most `max_bytes` of them beyond the first batch,
and waits no longer than `max_wait_ms` for `min_bytes`.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kafka.protocol.consumer import (
    FetchResponse,
    ListOffsetsResponse,
    OffsetForLeaderEpochResponse,
    OffsetSpec,
)

from shared.bus.devbroker.broker import LEADER_EPOCH, Broker
from shared.bus.devbroker.caller import Caller
from shared.bus.devbroker.codes import Code, Refusal
from shared.bus.devbroker.log import PartitionLog, TimedOffset

_TopicAnswer = FetchResponse.FetchableTopicResponse
_PartitionAnswer = _TopicAnswer.PartitionData


@dataclass
class _Wanted:
    """One partition of a fetch request, and what became of it."""

    partition: int
    offset: int
    max_bytes: int
    log: PartitionLog | None
    code: Code = Code.NONE

    def available(self) -> int:
        """Bytes that could be read now; notes the error instead when the offset is out of range."""
        if self.log is None or self.code is not Code.NONE:
            return 0
        try:
            return min(self.log.bytes_from(self.offset), self.max_bytes)
        except Refusal as refusal:
            self.code = refusal.code
            return 0


async def fetch(broker: Broker, caller: Caller, request: Any) -> Any:
    """Long-poll. Every answer is a full one: no fetch session is ever opened."""
    if request.session_id:
        return FetchResponse(error_code=Code.FETCH_SESSION_ID_NOT_FOUND, session_id=0, responses=[])
    topics = [
        (asked, [_resolve(broker, asked, part) for part in asked.partitions]) for asked in request.topics
    ]
    wanted = [want for _, wants in topics for want in wants]
    await _wait(wanted, request.min_bytes, request.max_wait_ms / 1000)
    budget = min(request.max_bytes, broker.settings.fetch_max_bytes)
    reader = _Reader(budget)
    return FetchResponse(
        error_code=Code.NONE,
        session_id=0,
        responses=[
            _TopicAnswer(
                topic=asked.topic, topic_id=asked.topic_id, partitions=[reader.answer(want) for want in wants]
            )
            for asked, wants in topics
        ],
    )


def _resolve(broker: Broker, asked: Any, part: Any) -> _Wanted:
    want = _Wanted(part.partition, part.fetch_offset, part.partition_max_bytes, None)
    try:
        topic = broker.topics.find(asked.topic, asked.topic_id)
        want.log = broker.topics.log(topic.name, part.partition)
        check_epoch(part.current_leader_epoch)
    except Refusal as refusal:
        want.code = refusal.code
    return want


def check_epoch(asked: int) -> None:
    """Raises Refusal when a client claims a leader epoch other than the only one there is."""
    if asked > LEADER_EPOCH:
        raise Refusal(Code.UNKNOWN_LEADER_EPOCH, f"leader epoch {asked} is not known; it is {LEADER_EPOCH}")


async def _wait(wanted: list[_Wanted], min_bytes: int, timeout_s: float) -> None:
    """Return when enough can be read, an error has to be told, or the time is up."""
    changed = asyncio.Event()
    logs = {want.log for want in wanted if want.log is not None}
    deadline = asyncio.get_running_loop().time() + timeout_s
    for log in logs:
        log.listeners.add(changed.set)
    try:
        while True:
            changed.clear()
            enough = sum(want.available() for want in wanted) >= min_bytes
            if enough or any(want.code is not Code.NONE for want in wanted):
                return
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                return
            try:
                await asyncio.wait_for(changed.wait(), left)
            except TimeoutError:
                return
    finally:
        for log in logs:
            log.listeners.discard(changed.set)


class _Reader:
    """Reads partitions in the order of the request until the budget of bytes is used up."""

    def __init__(self, budget: int) -> None:
        self._left = budget
        self._nothing_yet = True

    def answer(self, want: _Wanted) -> Any:
        log, records = want.log, b""
        if log is not None and want.code is Code.NONE:
            try:
                # The first batch is sent even if it is larger than was asked for, or readers would hang (KIP-74).
                if self._left > 0 or self._nothing_yet:
                    records = log.read(want.offset, min(want.max_bytes, self._left), self._nothing_yet)
            except Refusal as refusal:
                want.code = refusal.code
        self._left -= len(records)
        self._nothing_yet = self._nothing_yet and not records
        known = log if want.code is Code.NONE else None
        end = -1 if known is None else known.end_offset
        return _PartitionAnswer(
            partition_index=want.partition,
            error_code=want.code,
            high_watermark=end,
            last_stable_offset=end,
            log_start_offset=-1 if known is None else known.start_offset,
            aborted_transactions=None,
            preferred_read_replica=-1,
            records=records,
        )


def refuse_fetch(request: Any, code: Code) -> Any:
    """The same error for every partition of a request."""
    reader = _Reader(0)
    return FetchResponse(
        error_code=Code.NONE,
        session_id=0,
        responses=[
            _TopicAnswer(
                topic=asked.topic,
                topic_id=asked.topic_id,
                partitions=[
                    reader.answer(_Wanted(part.partition, part.fetch_offset, 0, None, code))
                    for part in asked.partitions
                ],
            )
            for asked in request.topics
        ],
    )


# -- ListOffsets -------------------------------------------------------------------------------------------

_OffsetTopic = ListOffsetsResponse.ListOffsetsTopicResponse
_OffsetPartition = _OffsetTopic.ListOffsetsPartitionResponse


async def list_offsets(broker: Broker, caller: Caller, request: Any) -> Any:
    """The earliest, the latest, or the first offset at or after a time."""
    topics = []
    for asked in request.topics:
        answers = []
        for part in asked.partitions:
            try:
                log = broker.topics.log(asked.name, part.partition_index)
                check_epoch(part.current_leader_epoch)
                answers.append(_offset_answer(part.partition_index, Code.NONE, _look_up(log, part.timestamp)))
            except Refusal as refusal:
                answers.append(_offset_answer(part.partition_index, refusal.code, None))
        topics.append(_OffsetTopic(name=asked.name, partitions=answers))
    return ListOffsetsResponse(topics=topics)


def _look_up(log: PartitionLog, timestamp: int) -> TimedOffset | None:
    if timestamp in (OffsetSpec.EARLIEST, OffsetSpec.EARLIEST_LOCAL):
        return TimedOffset(log.start_offset, -1)
    if timestamp == OffsetSpec.LATEST:
        return TimedOffset(log.end_offset, -1)
    if timestamp == OffsetSpec.MAX_TIMESTAMP:
        return log.latest_time()
    if timestamp == OffsetSpec.LATEST_TIERED:
        return None  # there is no tiered storage
    if timestamp < 0:
        raise Refusal(Code.UNSUPPORTED_VERSION, f"the special timestamp {timestamp} is not known")
    return log.offset_for_time(timestamp)


def _offset_answer(partition: int, code: Code, found: TimedOffset | None) -> Any:
    return _OffsetPartition(
        partition_index=partition,
        error_code=code,
        timestamp=-1 if found is None else found.timestamp,
        offset=-1 if found is None else found.offset,
        leader_epoch=-1 if found is None else LEADER_EPOCH,
        old_style_offsets=[],
    )


def refuse_list_offsets(request: Any, code: Code) -> Any:
    """The same error for every partition of a request."""
    return ListOffsetsResponse(
        topics=[
            _OffsetTopic(
                name=asked.name,
                partitions=[_offset_answer(part.partition_index, code, None) for part in asked.partitions],
            )
            for asked in request.topics
        ]
    )


# -- OffsetForLeaderEpoch ----------------------------------------------------------------------------------

_EpochTopic = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult
_EpochPartition = _EpochTopic.EpochEndOffset


async def offset_for_leader_epoch(broker: Broker, caller: Caller, request: Any) -> Any:
    """Where the one epoch ends: at the end of the log."""
    return OffsetForLeaderEpochResponse(
        topics=[
            _EpochTopic(topic=asked.topic, partitions=list(_epoch_answers(broker, asked)))
            for asked in request.topics
        ]
    )


def _epoch_answers(broker: Broker, asked: Any) -> Iterator[Any]:
    for part in asked.partitions:
        code, epoch, end = Code.NONE, -1, -1
        try:
            log = broker.topics.log(asked.topic, part.partition)
            check_epoch(part.current_leader_epoch)
            if part.leader_epoch == LEADER_EPOCH:
                epoch, end = LEADER_EPOCH, log.end_offset
        except Refusal as refusal:
            code = refusal.code
        yield _EpochPartition(partition=part.partition, error_code=code, leader_epoch=epoch, end_offset=end)
