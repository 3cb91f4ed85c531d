"""The group coordinator: drives the pure group machines with the clock and the event loop.

Invariant: every join or sync is answered exactly once; a group's membership is stored before its new assignment is
handed out, so that a restarted broker knows its members and they need not rebalance.
"""

import asyncio
import base64
import uuid
from collections.abc import Callable
from typing import Any

import structlog

from shared.bus.devbroker.codes import Code, Refusal
from shared.bus.devbroker.group_messages import (
    Due,
    GroupState,
    JoinAnswer,
    JoinRequest,
    Member,
    SyncAnswer,
    SyncRequest,
)
from shared.bus.devbroker.groups import Group
from shared.bus.devbroker.offsets import GroupStore
from shared.bus.devbroker.settings import DevBrokerSettings

Clock = Callable[[], int]


class GroupCoordinator:
    """Every consumer group of the broker. Belongs to the event loop."""

    def __init__(self, settings: DevBrokerSettings, store: GroupStore, clock: Clock) -> None:
        self.store = store
        self._settings = settings
        self._clock = clock
        self._groups: dict[str, Group] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def open(self) -> None:
        """Bring back the groups that had members; each member gets a whole session to be heard of."""
        for group_id, snapshot in self.store.snapshots().items():
            group = self._new_group(group_id)
            restore_group(group, snapshot, self._clock())
            self._groups[group_id] = group
            self._rearm(group)

    def close(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    # -- requests -------------------------------------------------------------------------------------------

    async def join(self, group_id: str, request: JoinRequest) -> JoinAnswer:
        low, high = self._settings.group_min_session_timeout_ms, self._settings.group_max_session_timeout_ms
        if not group_id:
            return JoinAnswer(Code.INVALID_GROUP_ID, request.member_id)
        if not low <= request.session_timeout_ms <= high:
            return JoinAnswer(Code.INVALID_SESSION_TIMEOUT, request.member_id)
        if request.member_id and group_id not in self._groups:
            return JoinAnswer(Code.UNKNOWN_MEMBER_ID, request.member_id)
        group = self._groups.setdefault(group_id, self._new_group(group_id))
        waiting: asyncio.Future[JoinAnswer | SyncAnswer] = asyncio.get_running_loop().create_future()
        self._deliver(group, group.join(waiting, request, self._clock()))
        answer = await waiting
        assert isinstance(answer, JoinAnswer)
        return answer

    async def sync(self, group_id: str, request: SyncRequest) -> SyncAnswer:
        group = self._groups.get(group_id)
        if group is None:
            return SyncAnswer(Code.UNKNOWN_MEMBER_ID)
        waiting: asyncio.Future[JoinAnswer | SyncAnswer] = asyncio.get_running_loop().create_future()
        self._deliver(group, group.sync(waiting, request, self._clock()))
        answer = await waiting
        assert isinstance(answer, SyncAnswer)
        return answer

    def heartbeat(self, group_id: str, member_id: str, instance_id: str | None, generation: int) -> Code:
        group = self._groups.get(group_id)
        if group is None:
            return Code.UNKNOWN_MEMBER_ID
        return group.heartbeat(member_id, instance_id, generation, self._clock())

    def leave(self, group_id: str, member_id: str, instance_id: str | None) -> Code:
        group = self._groups.get(group_id)
        if group is None:
            return Code.UNKNOWN_MEMBER_ID
        code, due = group.leave(member_id, instance_id, self._clock())
        self._deliver(group, due)
        return code

    def may_commit(self, group_id: str, member_id: str, instance_id: str | None, generation: int) -> Code:
        """GROUP_ID_NOT_FOUND when a generation of an unknown group is claimed."""
        group = self._groups.get(group_id)
        if group is None:
            if generation < 0:
                return Code.NONE
            known = group_id in self.store.groups()
            return Code.UNKNOWN_MEMBER_ID if known else Code.GROUP_ID_NOT_FOUND
        return group.may_commit(member_id, instance_id, generation, self._clock())

    # -- administration -------------------------------------------------------------------------------------

    def find(self, group_id: str) -> Group | None:
        """The group, an empty one if it has left only offsets, or None."""
        group = self._groups.get(group_id)
        if group is None and group_id in self.store.groups():
            group = self._new_group(group_id)
        return group

    def all(self) -> list[Group]:
        names = sorted(self._groups.keys() | self.store.groups())
        return [group for group in map(self.find, names) if group is not None]

    def delete(self, group_id: str) -> None:
        """Raises Refusal with GROUP_ID_NOT_FOUND or NON_EMPTY_GROUP."""
        group = self.find(group_id)
        if group is None:
            raise Refusal(Code.GROUP_ID_NOT_FOUND, f"there is no group {group_id!r}")
        if group.members:
            raise Refusal(
                Code.NON_EMPTY_GROUP, f"group {group_id!r} has {len(group.members)} members; stop them first"
            )
        self.store.forget_group(group_id)
        self._groups.pop(group_id, None)
        timer = self._timers.pop(group_id, None)
        if timer is not None:
            timer.cancel()

    # -- driving --------------------------------------------------------------------------------------------

    def _new_group(self, group_id: str) -> Group:
        def new_member_id(stem: str) -> str:
            return f"{stem}-{uuid.uuid4()}"

        return Group(group_id, new_member_id, self._settings.group_initial_rebalance_delay_ms)

    def _deliver(self, group: Group, due: list[Due]) -> None:
        self._remember(group, due)
        for token, answer in due:
            assert isinstance(token, asyncio.Future)
            if not token.done():  # done when its connection was closed meanwhile
                token.set_result(answer)
        self._rearm(group)

    def _remember(self, group: Group, due: list[Due]) -> None:
        try:
            if group.state is GroupState.EMPTY:
                self.store.save_snapshot(group.group_id, None)
            elif group.state is GroupState.STABLE and due:
                self.store.save_snapshot(group.group_id, snapshot_group(group))
        except (
            Refusal
        ) as refusal:  # the members still get their answers; only a restart would make them rebalance
            structlog.get_logger().error(
                "devbroker.group_not_stored", group=group.group_id, reason=str(refusal)
            )

    def _rearm(self, group: Group) -> None:
        timer = self._timers.pop(group.group_id, None)
        if timer is not None:
            timer.cancel()
        deadline = group.next_deadline()
        if deadline is not None:
            delay = max(deadline - self._clock(), 0) / 1000
            loop = asyncio.get_running_loop()
            self._timers[group.group_id] = loop.call_later(delay, self._tick, group)

    def _tick(self, group: Group) -> None:
        self._timers.pop(group.group_id, None)
        self._deliver(group, group.tick(self._clock()))


def snapshot_group(group: Group) -> dict[str, Any]:
    """A stable group as JSON values."""
    return {
        "generation": group.generation,
        "protocol_type": group.protocol_type,
        "protocol": group.protocol,
        "leader": group.leader,
        "members": [
            {
                "member_id": member.member_id,
                "instance_id": member.instance_id,
                "client_id": member.client_id,
                "client_host": member.client_host,
                "session_timeout_ms": member.session_timeout_ms,
                "rebalance_timeout_ms": member.rebalance_timeout_ms,
                "protocols": [[name, base64.b64encode(data).decode()] for name, data in member.protocols],
                "assignment": base64.b64encode(member.assignment).decode(),
            }
            for member in group.members.values()
        ],
    }


def restore_group(group: Group, snapshot: dict[str, Any], now: float) -> None:
    """Put a snapshot's members into a new group, with fresh sessions."""
    group.state = GroupState.STABLE
    group.generation = snapshot["generation"]
    group.protocol_type, group.protocol = snapshot["protocol_type"], snapshot["protocol"]
    group.leader = snapshot["leader"]
    for row in snapshot["members"]:
        protocols = tuple((name, base64.b64decode(data)) for name, data in row["protocols"])
        assignment = base64.b64decode(row["assignment"])
        fixed = {**row, "protocols": protocols, "assignment": assignment}
        member = Member(**fixed, deadline=now + row["session_timeout_ms"])
        group.members[member.member_id] = member
        if member.instance_id is not None:
            group.instances[member.instance_id] = member.member_id
