"""One consumer group of the classic protocol, as a pure state machine.

Invariant: a generation has one member list, one leader and one protocol that every member supports; a partition's
work is handed out only by the leader of the current generation. Time is passed in (milliseconds); requests that have
to wait are named by tokens, and every method returns the answers that became due.
Source: KIP-62 (session and rebalance timeouts), KIP-345 (static members), KIP-394 (member ids first), and
https://kafka.apache.org/protocol (JoinGroup, SyncGroup, Heartbeat, LeaveGroup).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from shared.bus.devbroker.codes import Code
from shared.bus.devbroker.group_messages import (
    Due,
    GroupState,
    JoinAnswer,
    JoinRequest,
    Member,
    SyncAnswer,
    SyncRequest,
    Token,
)


@dataclass
class Group:
    """The coordinator's side of one group. `new_member_id` makes ids that never repeat."""

    group_id: str
    new_member_id: Callable[[str], str]
    initial_delay_ms: int = 0
    state: GroupState = GroupState.EMPTY
    generation: int = 0
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str | None = None
    members: dict[str, Member] = field(default_factory=dict)
    pending: dict[str, float] = field(default_factory=dict)  # ids given out (KIP-394): when they lapse
    instances: dict[str, str] = field(default_factory=dict)  # group.instance.id -> member id
    rebalance_deadline: float = 0.0
    join_not_before: float = 0.0
    sync_deadline: float = 0.0

    # -- JoinGroup ------------------------------------------------------------------------------------------

    def join(self, token: Token, request: JoinRequest, now: float) -> list[Due]:
        """Take a member in, or tell why not. Static members keep their place under a new member id."""
        refusal = self._refuse_join(request)
        if refusal is not None:
            return [Due(token, JoinAnswer(refusal, request.member_id))]
        if not request.member_id:
            return self._join_unknown(token, request, now)
        if request.member_id in self.pending:
            del self.pending[request.member_id]
            return self._add(token, request, request.member_id, now)
        return self._rejoin(token, request, self.members[request.member_id], now)

    def _refuse_join(self, request: JoinRequest) -> Code | None:
        names = {name for name, _ in request.protocols}
        if not names or not request.protocol_type:
            return Code.INCONSISTENT_GROUP_PROTOCOL
        if self.members and request.protocol_type != self.protocol_type:
            return Code.INCONSISTENT_GROUP_PROTOCOL
        others = [m for m in self.members.values() if not self._is_same(m, request)]
        if others and not names & self._common_protocols(others):
            return Code.INCONSISTENT_GROUP_PROTOCOL
        if request.member_id:
            instance = request.instance_id
            if instance is not None and self.instances.get(instance, request.member_id) != request.member_id:
                return Code.FENCED_INSTANCE_ID
            if request.member_id not in self.members and request.member_id not in self.pending:
                return Code.UNKNOWN_MEMBER_ID
        return None

    @staticmethod
    def _is_same(member: Member, request: JoinRequest) -> bool:
        if request.member_id:
            return member.member_id == request.member_id
        return request.instance_id is not None and member.instance_id == request.instance_id

    def _join_unknown(self, token: Token, request: JoinRequest, now: float) -> list[Due]:
        member_id = self.new_member_id(request.instance_id or request.client_id)
        if request.instance_id is not None:
            known = self.instances.get(request.instance_id)
            if known is not None:
                return self._replace_static(token, request, self.members[known], member_id, now)
        elif request.must_know_member_id:
            self.pending[member_id] = now + request.session_timeout_ms
            return [Due(token, JoinAnswer(Code.MEMBER_ID_REQUIRED, member_id))]
        return self._add(token, request, member_id, now)

    def _add(self, token: Token, request: JoinRequest, member_id: str, now: float) -> list[Due]:
        member = Member(
            member_id,
            request.instance_id,
            request.client_id,
            request.client_host,
            request.session_timeout_ms,
            request.rebalance_timeout_ms,
            request.protocols,
            deadline=now + request.session_timeout_ms,
            join_token=token,
        )
        self.members[member_id] = member
        self.protocol_type = request.protocol_type
        if request.instance_id is not None:
            self.instances[request.instance_id] = member_id
        if self.state is GroupState.PREPARING and now < self.join_not_before:
            self.join_not_before = min(now + self.initial_delay_ms, self.rebalance_deadline)
        return self._start_rebalance(now)

    def _replace_static(
        self, token: Token, request: JoinRequest, old: Member, member_id: str, now: float
    ) -> list[Due]:
        due = self._dismiss(old, Code.FENCED_INSTANCE_ID)
        del self.members[old.member_id]
        was_leader = self.leader == old.member_id
        member = Member(
            member_id,
            old.instance_id,
            request.client_id,
            request.client_host,
            request.session_timeout_ms,
            request.rebalance_timeout_ms,
            request.protocols,
            deadline=now + request.session_timeout_ms,
            assignment=old.assignment,
        )
        self.members[member_id] = member
        self.instances[request.instance_id or ""] = member_id
        if was_leader:
            self.leader = member_id
        if self.state is GroupState.STABLE and self._select_protocol() == self.protocol:
            skip = request.may_skip_assignment
            leader = (self.leader or "") if skip or not was_leader else old.member_id
            members = self._member_list() if skip and was_leader else ()
            answer = self._joined(member, leader, members, skip and was_leader)
            return [*due, Due(token, answer)]
        member.join_token = token
        return due + self._start_rebalance(now)

    def _rejoin(self, token: Token, request: JoinRequest, member: Member, now: float) -> list[Due]:
        due: list[Due] = []
        if member.join_token is not None:
            due.append(Due(member.join_token, JoinAnswer(Code.REBALANCE_IN_PROGRESS, member.member_id)))
            member.join_token = None
        same = member.protocols == request.protocols
        member.deadline = now + request.session_timeout_ms
        is_leader = member.member_id == self.leader
        if self.state is GroupState.COMPLETING and same:
            return [*due, Due(token, self._current(member))]  # its answer was lost on the way
        if self.state is GroupState.STABLE and same and not is_leader:
            return [*due, Due(token, self._current(member))]
        member.protocols = request.protocols
        member.session_timeout_ms = request.session_timeout_ms
        member.rebalance_timeout_ms = request.rebalance_timeout_ms
        member.join_token = token
        return due + self._start_rebalance(now)

    def _current(self, member: Member) -> JoinAnswer:
        is_leader = member.member_id == self.leader
        return self._joined(member, self.leader or "", self._member_list() if is_leader else (), False)

    def _joined(
        self, member: Member, leader: str, members: tuple[tuple[str, str | None, bytes], ...], skip: bool
    ) -> JoinAnswer:
        return JoinAnswer(
            Code.NONE,
            member.member_id,
            self.generation,
            self.protocol_type,
            self.protocol,
            leader,
            members,
            skip,
        )

    def _member_list(self) -> tuple[tuple[str, str | None, bytes], ...]:
        return tuple((m.member_id, m.instance_id, m.metadata(self.protocol)) for m in self.members.values())

    # -- rebalancing ----------------------------------------------------------------------------------------

    def _start_rebalance(self, now: float) -> list[Due]:
        due: list[Due] = []
        if self.state is not GroupState.PREPARING:
            for member in self.members.values():
                if member.sync_token is not None:
                    due.append(Due(member.sync_token, SyncAnswer(Code.REBALANCE_IN_PROGRESS)))
                    member.sync_token = None
                    member.deadline = now + member.session_timeout_ms
            self.join_not_before = now + self.initial_delay_ms if self.state is GroupState.EMPTY else now
            self.state = GroupState.PREPARING
            self.rebalance_deadline = now + self._longest_rebalance()
        return due + self._complete_join_if_ready(now)

    def _longest_rebalance(self) -> int:
        return max((max(member.rebalance_timeout_ms, 1) for member in self.members.values()), default=0)

    def _complete_join_if_ready(self, now: float) -> list[Due]:
        if self.state is not GroupState.PREPARING:
            return []
        everybody = all(m.join_token is not None for m in self.members.values()) and not self.pending
        if (everybody and now >= self.join_not_before) or now >= self.rebalance_deadline:
            return self._complete_join(now)
        return []

    def _complete_join(self, now: float) -> list[Due]:
        """End the join phase: those who came form the next generation."""
        due: list[Due] = []
        for member in list(self.members.values()):
            # A static member that is late keeps its place until its own session ends.
            if member.join_token is None and member.instance_id is None:
                due += self._forget(member, Code.UNKNOWN_MEMBER_ID)
        if not self.members:
            self._become_empty()
            return due
        joined = [member for member in self.members.values() if member.join_token is not None]
        if not joined:
            self.rebalance_deadline = now + self._longest_rebalance()
            return due
        if self.leader not in self.members or self.members[self.leader].join_token is None:
            self.leader = joined[0].member_id
        self.generation += 1
        self.protocol = self._select_protocol()
        self.state = GroupState.COMPLETING
        self.sync_deadline = now + self._longest_rebalance()
        for member in joined:
            due.append(Due(member.join_token, self._current(member)))
            member.join_token = None
            member.assignment = b""
            member.deadline = now + member.session_timeout_ms
        return due

    def _become_empty(self) -> None:
        self.generation += 1
        self.state = GroupState.EMPTY
        self.protocol = self.leader = None

    @staticmethod
    def _common_protocols(members: Sequence[Member]) -> set[str]:
        common = {name for name, _ in members[0].protocols}
        for member in members[1:]:
            common &= {name for name, _ in member.protocols}
        return common

    def _select_protocol(self) -> str | None:
        """The protocol with most votes; each member votes for its first choice among those that all support."""
        members = list(self.members.values())
        common = self._common_protocols(members)
        votes: dict[str, int] = {}
        for member in members:
            choice = next((name for name, _ in member.protocols if name in common), None)
            if choice is not None:
                votes[choice] = votes.get(choice, 0) + 1
        return max(votes, key=lambda name: votes[name], default=None)

    # -- SyncGroup ------------------------------------------------------------------------------------------

    def sync(self, token: Token, request: SyncRequest, now: float) -> list[Due]:
        """Take the leader's assignment and hand each member its part."""
        member_id = request.member_id
        code = self.check_member(member_id, request.instance_id, request.generation)
        if code is Code.NONE and not self._agrees(request):
            code = Code.INCONSISTENT_GROUP_PROTOCOL
        if code is Code.NONE and self.state is GroupState.PREPARING:
            code = Code.REBALANCE_IN_PROGRESS
        if code is not Code.NONE:
            return [Due(token, SyncAnswer(code))]
        member = self.members[member_id]
        member.deadline = now + member.session_timeout_ms
        if self.state is GroupState.STABLE:
            return [Due(token, self._synced(member))]
        due: list[Due] = []
        if member.sync_token is not None:
            due.append(Due(member.sync_token, SyncAnswer(Code.REBALANCE_IN_PROGRESS)))
        member.sync_token = token
        return due + (self._distribute(request.assignments, now) if member_id == self.leader else [])

    def _agrees(self, request: SyncRequest) -> bool:
        return request.protocol_type in (None, self.protocol_type) and request.protocol in (
            None,
            self.protocol,
        )

    def _distribute(self, assignments: Mapping[str, bytes], now: float) -> list[Due]:
        due: list[Due] = []
        self.state = GroupState.STABLE
        for member in self.members.values():
            member.assignment = assignments.get(member.member_id, b"")
            if member.sync_token is not None:
                due.append(Due(member.sync_token, self._synced(member)))
                member.sync_token = None
                member.deadline = now + member.session_timeout_ms
        return due

    def _synced(self, member: Member) -> SyncAnswer:
        return SyncAnswer(Code.NONE, member.assignment, self.protocol_type, self.protocol)

    # -- Heartbeat, OffsetCommit, LeaveGroup ----------------------------------------------------------------

    def check_member(self, member_id: str, instance_id: str | None, generation: int) -> Code:
        """NONE for a member of the current generation, else the code that says what is wrong."""
        if instance_id is not None and self.instances.get(instance_id, member_id) != member_id:
            return Code.FENCED_INSTANCE_ID
        if member_id not in self.members:
            return Code.UNKNOWN_MEMBER_ID
        return Code.NONE if generation == self.generation else Code.ILLEGAL_GENERATION

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int, now: float) -> Code:
        code = self.check_member(member_id, instance_id, generation)
        if code is not Code.NONE:
            return code
        self._hear_of(self.members[member_id], now)
        return Code.REBALANCE_IN_PROGRESS if self.state is GroupState.PREPARING else Code.NONE

    def may_commit(self, member_id: str, instance_id: str | None, generation: int, now: float) -> Code:
        """Whether offsets may be committed: by a member of this generation, or by anybody when nobody is in."""
        if generation < 0 and not self.members:
            return Code.NONE
        code = self.check_member(member_id, instance_id, generation)
        if code is not Code.NONE:
            return code
        self._hear_of(self.members[member_id], now)
        return Code.REBALANCE_IN_PROGRESS if self.state is GroupState.COMPLETING else Code.NONE

    def _hear_of(self, member: Member, now: float) -> None:
        member.deadline = now + member.session_timeout_ms

    def leave(self, member_id: str, instance_id: str | None, now: float) -> tuple[Code, list[Due]]:
        """Take a member out; a static one may be named by its instance id alone."""
        if instance_id is not None and not member_id:
            member_id = self.instances.get(instance_id, "")
        if member_id in self.pending:
            del self.pending[member_id]
            return Code.NONE, self._complete_join_if_ready(now)
        if instance_id is not None and self.instances.get(instance_id, member_id) != member_id:
            return Code.FENCED_INSTANCE_ID, []
        if member_id not in self.members:
            return Code.UNKNOWN_MEMBER_ID, []
        return Code.NONE, self._remove(self.members[member_id], now)

    def _remove(self, member: Member, now: float) -> list[Due]:
        due = self._forget(member, Code.UNKNOWN_MEMBER_ID)
        if self.state in (GroupState.STABLE, GroupState.COMPLETING):
            return due + self._start_rebalance(now)
        return due + self._complete_join_if_ready(now)

    def _forget(self, member: Member, code: Code) -> list[Due]:
        del self.members[member.member_id]
        if member.instance_id is not None and self.instances.get(member.instance_id) == member.member_id:
            del self.instances[member.instance_id]
        return self._dismiss(member, code)

    @staticmethod
    def _dismiss(member: Member, code: Code) -> list[Due]:
        due: list[Due] = []
        if member.join_token is not None:
            due.append(Due(member.join_token, JoinAnswer(code, member.member_id)))
        if member.sync_token is not None:
            due.append(Due(member.sync_token, SyncAnswer(code)))
        member.join_token = member.sync_token = None
        return due

    # -- time -----------------------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """When `tick` has to be called next, or None while nothing is pending."""
        deadlines = [m.deadline for m in self.members.values() if not m.waits]
        deadlines += self.pending.values()
        if self.state is GroupState.PREPARING:
            deadlines.append(self.rebalance_deadline)
            if self.join_not_before < self.rebalance_deadline:
                everybody = all(m.join_token is not None for m in self.members.values()) and not self.pending
                deadlines += [self.join_not_before] if everybody else []
        if self.state is GroupState.COMPLETING:
            deadlines.append(self.sync_deadline)
        return min(deadlines, default=None)

    def tick(self, now: float) -> list[Due]:
        """Let lapse what has lapsed: sessions, given-out ids, the join phase, the sync phase."""
        due: list[Due] = []
        for member_id in [member_id for member_id, lapses in self.pending.items() if lapses <= now]:
            del self.pending[member_id]
        for member in [m for m in self.members.values() if not m.waits and m.deadline <= now]:
            if member.member_id in self.members:
                due += self._remove(member, now)
        if self.state is GroupState.COMPLETING and self.sync_deadline <= now:
            for member in [m for m in self.members.values() if m.sync_token is None]:
                due += self._forget(member, Code.UNKNOWN_MEMBER_ID)
            due += self._start_rebalance(now)
        return due + self._complete_join_if_ready(now)
