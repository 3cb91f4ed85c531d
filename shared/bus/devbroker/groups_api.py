"""JoinGroup, SyncGroup, Heartbeat, LeaveGroup, and the administration of groups.

Invariant: these only translate; what a group does is decided by the group machine.
"""

from typing import Any

from kafka.protocol.admin import DeleteGroupsResponse, DescribeGroupsResponse, ListGroupsResponse
from kafka.protocol.consumer import (
    HeartbeatResponse,
    JoinGroupResponse,
    LeaveGroupResponse,
    SyncGroupResponse,
)

from shared.bus.devbroker.broker import Broker
from shared.bus.devbroker.caller import Caller
from shared.bus.devbroker.codes import Code, Refusal
from shared.bus.devbroker.group_messages import GroupState, JoinRequest, SyncRequest
from shared.bus.devbroker.groups import Group

_DescribedGroup = DescribeGroupsResponse.DescribedGroup
_DescribedMember = _DescribedGroup.DescribedGroupMember


async def join_group(broker: Broker, caller: Caller, request: Any) -> Any:
    """Wait until the group's next generation is formed."""
    rebalance_timeout = request.rebalance_timeout_ms if caller.version >= 1 else request.session_timeout_ms
    answer = await broker.groups.join(
        request.group_id,
        JoinRequest(
            member_id=request.member_id,
            instance_id=request.group_instance_id,
            client_id=caller.client_id,
            client_host=caller.peer_host,
            session_timeout_ms=request.session_timeout_ms,
            rebalance_timeout_ms=rebalance_timeout,
            protocol_type=request.protocol_type,
            protocols=tuple((protocol.name, protocol.metadata) for protocol in request.protocols),
            must_know_member_id=caller.version >= 4,
            may_skip_assignment=caller.version >= 9,
        ),
    )
    protocol = answer.protocol
    return JoinGroupResponse(
        error_code=answer.code,
        generation_id=answer.generation,
        protocol_type=answer.protocol_type,
        protocol_name=protocol if protocol is not None or caller.version >= 7 else "",
        leader=answer.leader,
        skip_assignment=answer.skip_assignment,
        member_id=answer.member_id,
        members=[
            JoinGroupResponse.JoinGroupResponseMember(
                member_id=name, group_instance_id=instance, metadata=metadata
            )
            for name, instance, metadata in answer.members
        ],
    )


def refuse_join_group(request: Any, code: Code) -> Any:
    return JoinGroupResponse(
        error_code=code,
        generation_id=-1,
        protocol_name="",
        leader="",
        member_id=request.member_id,
        members=[],
    )


async def sync_group(broker: Broker, caller: Caller, request: Any) -> Any:
    """Wait until the leader has said who gets what."""
    answer = await broker.groups.sync(
        request.group_id,
        SyncRequest(
            member_id=request.member_id,
            instance_id=request.group_instance_id,
            generation=request.generation_id,
            protocol_type=request.protocol_type,
            protocol=request.protocol_name,
            assignments={part.member_id: part.assignment for part in request.assignments},
        ),
    )
    return SyncGroupResponse(
        error_code=answer.code,
        protocol_type=answer.protocol_type,
        protocol_name=answer.protocol,
        assignment=answer.assignment,
    )


def refuse_sync_group(request: Any, code: Code) -> Any:
    return SyncGroupResponse(error_code=code, assignment=b"")


async def heartbeat(broker: Broker, caller: Caller, request: Any) -> Any:
    return HeartbeatResponse(
        error_code=broker.groups.heartbeat(
            request.group_id, request.member_id, request.group_instance_id, request.generation_id
        )
    )


async def leave_group(broker: Broker, caller: Caller, request: Any) -> Any:
    """One member before v3, several from then on."""
    if caller.version < 3:
        return LeaveGroupResponse(error_code=broker.groups.leave(request.group_id, request.member_id, None))
    return LeaveGroupResponse(
        error_code=Code.NONE,
        members=[
            LeaveGroupResponse.MemberResponse(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                error_code=broker.groups.leave(request.group_id, member.member_id, member.group_instance_id),
            )
            for member in request.members
        ],
    )


# -- administration ----------------------------------------------------------------------------------------


async def describe_groups(broker: Broker, caller: Caller, request: Any) -> Any:
    """State and members of each group; an unknown one is "Dead", as in Kafka."""
    return DescribeGroupsResponse(
        groups=[_described(name, broker.groups.find(name), caller.version) for name in request.groups]
    )


def _described(name: str, group: Group | None, version: int) -> Any:
    if group is None:
        code = Code.GROUP_ID_NOT_FOUND if version >= 6 else Code.NONE
        message = f"Group {name} not found." if version >= 6 else None
        return _DescribedGroup(
            error_code=code,
            error_message=message,
            group_id=name,
            group_state="Dead",
            protocol_type="",
            protocol_data="",
            members=[],
        )
    settled = group.state is GroupState.STABLE
    return _DescribedGroup(
        error_code=Code.NONE,
        error_message=None,
        group_id=name,
        group_state=str(group.state),
        protocol_type=group.protocol_type or "",
        protocol_data=group.protocol or "" if settled else "",
        members=[
            _DescribedMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=f"/{member.client_host}",
                member_metadata=member.metadata(group.protocol) if settled else b"",
                member_assignment=member.assignment if settled else b"",
            )
            for member in group.members.values()
        ],
    )


async def list_groups(broker: Broker, caller: Caller, request: Any) -> Any:
    """Every group, or those in the states (and of the types) that were asked for."""
    states = {state.lower() for state in request.states_filter or []}
    types = {kind.lower() for kind in request.types_filter or []}
    return ListGroupsResponse(
        error_code=Code.NONE,
        groups=[
            ListGroupsResponse.ListedGroup(
                group_id=group.group_id,
                protocol_type=group.protocol_type or "",
                group_state=str(group.state),
                group_type="classic",
            )
            for group in broker.groups.all()
            if (not states or group.state.lower() in states) and (not types or "classic" in types)
        ],
    )


async def delete_groups(broker: Broker, caller: Caller, request: Any) -> Any:
    return DeleteGroupsResponse(
        results=[
            DeleteGroupsResponse.DeletableGroupResult(group_id=name, error_code=_delete_group(broker, name))
            for name in request.groups_names
        ]
    )


def _delete_group(broker: Broker, name: str) -> Code:
    try:
        broker.groups.delete(name)
    except Refusal as refusal:
        return refusal.code
    return Code.NONE
