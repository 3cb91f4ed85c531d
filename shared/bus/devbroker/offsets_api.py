"""OffsetCommit, OffsetFetch and OffsetDelete.

Invariant: all partitions of a request that may be committed are stored in one journal entry before the answer.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple
from uuid import UUID

from kafka.protocol.consumer import OffsetCommitResponse, OffsetDeleteResponse, OffsetFetchResponse
from kafka.protocol.consumer.metadata import ConsumerProtocolSubscription, ConsumerProtocolType

from shared.bus.devbroker.broker import Broker
from shared.bus.devbroker.caller import Caller
from shared.bus.devbroker.codes import Code, Refusal
from shared.bus.devbroker.groups import Group
from shared.bus.devbroker.offsets import Committed, TopicPartition

_CommitTopic = OffsetCommitResponse.OffsetCommitResponseTopic
_CommitPartition = _CommitTopic.OffsetCommitResponsePartition
_NOTHING = Committed(offset=-1)


async def offset_commit(broker: Broker, caller: Caller, request: Any) -> Any:
    """Store offsets with their metadata strings, for a member of the current generation or an empty group."""
    code = broker.groups.may_commit(
        request.group_id, request.member_id, request.group_instance_id, request.generation_id_or_member_epoch
    )
    if code is Code.GROUP_ID_NOT_FOUND and caller.version < 9:
        code = Code.ILLEGAL_GENERATION  # what older clients understand
    if code is not Code.NONE:
        return refuse_offset_commit(request, code)
    accepted: dict[TopicPartition, Committed] = {}
    answers = []
    for asked in request.topics:
        parts = [(part.partition_index, _check(broker, asked, part, accepted)) for part in asked.partitions]
        answers.append((asked, parts))
    if accepted:
        try:
            broker.store.commit(request.group_id, accepted)
        except Refusal as refusal:
            return refuse_offset_commit(request, refusal.code)
    return _commit_answer(answers)


def _check(broker: Broker, asked: Any, part: Any, accepted: dict[TopicPartition, Committed]) -> Code:
    try:
        topic = broker.topics.find(asked.name, asked.topic_id)
        broker.topics.log(topic.name, part.partition_index)
    except Refusal as refusal:
        return refusal.code
    note = part.committed_metadata or ""
    if len(note.encode()) > broker.settings.offset_metadata_max_bytes:
        return Code.OFFSET_METADATA_TOO_LARGE
    accepted[topic.name, part.partition_index] = Committed(
        part.committed_offset, part.committed_leader_epoch, note, broker.clock()
    )
    return Code.NONE


def refuse_offset_commit(request: Any, code: Code) -> Any:
    """The same error for every partition of a request."""
    return _commit_answer(
        [(asked, [(part.partition_index, code) for part in asked.partitions]) for asked in request.topics]
    )


def _commit_answer(answers: list[tuple[Any, list[tuple[int, Code]]]]) -> Any:
    return OffsetCommitResponse(
        topics=[
            _CommitTopic(
                name=asked.name,
                topic_id=asked.topic_id,
                partitions=[
                    _CommitPartition(partition_index=index, error_code=code) for index, code in parts
                ],
            )
            for asked, parts in answers
        ]
    )


# -- OffsetFetch -------------------------------------------------------------------------------------------

_Single = OffsetFetchResponse.OffsetFetchResponseTopic
_Grouped = OffsetFetchResponse.OffsetFetchResponseGroup
_GroupedTopic = _Grouped.OffsetFetchResponseTopics


async def offset_fetch(broker: Broker, caller: Caller, request: Any) -> Any:
    """Committed offsets of one group (before v8) or of several; -1 where there is none."""
    if caller.version >= 8:
        return OffsetFetchResponse(groups=[_group_offsets(broker, asked) for asked in request.groups])
    asked = None
    if request.topics is not None:
        asked = [_Asked(topic.name, None, topic.partition_indexes) for topic in request.topics]
    topics = [
        _Single(
            name=name, partitions=[_offset_row(_Single.OffsetFetchResponsePartition, row) for row in rows]
        )
        for name, _, rows in _rows(broker, request.group_id, asked)
    ]
    return OffsetFetchResponse(topics=topics, error_code=Code.NONE)


def _group_offsets(broker: Broker, request: Any) -> Any:
    if request.member_id is not None and request.member_epoch >= 0:
        # Only members of the newer group protocol have an epoch, and there are none here.
        return _Grouped(group_id=request.group_id, topics=[], error_code=Code.UNKNOWN_MEMBER_ID)
    asked = None
    if request.topics is not None:
        asked = [_Asked(topic.name, topic.topic_id, topic.partition_indexes) for topic in request.topics]
    topics = [
        _GroupedTopic(
            name=name,
            topic_id=topic_id,
            partitions=[_offset_row(_GroupedTopic.OffsetFetchResponsePartitions, row) for row in rows],
        )
        for name, topic_id, rows in _rows(broker, request.group_id, asked)
    ]
    return _Grouped(group_id=request.group_id, topics=topics, error_code=Code.NONE)


class _Asked(NamedTuple):
    """One topic of a request, named by name (before v10) or by id."""

    name: str
    topic_id: UUID | None
    partitions: list[int]


_Row = tuple[int, Committed, Code]


def _rows(
    broker: Broker, group_id: str, asked: list[_Asked] | None
) -> Iterable[tuple[str, UUID | None, list[_Row]]]:
    """Per topic: its name, its id, and (partition, what was committed, error). Everything for None."""
    if asked is None:
        by_topic: dict[str, list[_Row]] = {}
        for (name, partition), committed in sorted(broker.store.offsets(group_id).items()):
            by_topic.setdefault(name, []).append((partition, committed, Code.NONE))
        for name, rows in by_topic.items():
            yield name, broker.topics.get(name).topic_id, rows
        return
    for topic in asked:
        try:
            name = topic.name or broker.topics.by_id(topic.topic_id).name
        except Refusal as refusal:
            yield "", topic.topic_id, [(index, _NOTHING, refusal.code) for index in topic.partitions]
            continue
        found = [(index, broker.store.get(group_id, name, index)) for index in topic.partitions]
        yield name, topic.topic_id, [(index, committed or _NOTHING, Code.NONE) for index, committed in found]


def _offset_row(kind: Any, row: _Row) -> Any:
    partition, committed, code = row
    return kind(
        partition_index=partition,
        committed_offset=committed.offset,
        committed_leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        error_code=code,
    )


def refuse_offset_fetch(request: Any, code: Code) -> Any:
    """The same error for every group of a request, and for every partition where groups can't have one (v1)."""
    return OffsetFetchResponse(
        topics=[
            _Single(
                name=topic.name,
                partitions=[
                    _offset_row(_Single.OffsetFetchResponsePartition, (index, _NOTHING, code))
                    for index in topic.partition_indexes
                ],
            )
            for topic in request.topics or []
        ],
        error_code=code,
        groups=[
            _Grouped(group_id=asked.group_id, topics=[], error_code=code) for asked in request.groups or []
        ],
    )


# -- OffsetDelete ------------------------------------------------------------------------------------------

_DeleteTopic = OffsetDeleteResponse.OffsetDeleteResponseTopic
_DeletePartition = _DeleteTopic.OffsetDeleteResponsePartition


async def offset_delete(broker: Broker, caller: Caller, request: Any) -> Any:
    """Forget committed offsets of topics that no member of the group is subscribed to."""
    group = broker.groups.find(request.group_id)
    if group is None:
        return OffsetDeleteResponse(error_code=Code.GROUP_ID_NOT_FOUND, topics=[])
    if group.members and group.protocol_type != ConsumerProtocolType:
        return OffsetDeleteResponse(error_code=Code.NON_EMPTY_GROUP, topics=[])
    in_use = _subscribed_topics(group)
    topics = []
    for asked in request.topics:
        indexes = [part.partition_index for part in asked.partitions]
        code = Code.GROUP_SUBSCRIBED_TO_TOPIC if asked.name in in_use else Code.NONE
        if code is Code.NONE:
            broker.store.forget_offsets(request.group_id, [(asked.name, index) for index in indexes])
        rows = [_DeletePartition(partition_index=index, error_code=code) for index in indexes]
        topics.append(_DeleteTopic(name=asked.name, partitions=rows))
    return OffsetDeleteResponse(error_code=Code.NONE, topics=topics)


def _subscribed_topics(group: Group) -> set[str]:
    topics: set[str] = set()
    for member in group.members.values():
        metadata = member.metadata(group.protocol)
        if metadata:
            topics.update(ConsumerProtocolSubscription.decode(metadata).topics)
    return topics
