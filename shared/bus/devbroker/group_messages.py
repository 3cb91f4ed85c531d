"""What goes into and comes out of a group machine, and what it keeps of a member.

Invariant: these are values; only the group machine changes a Member.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from shared.bus.devbroker.codes import Code

Token = object


class GroupState(StrEnum):
    """Names as DescribeGroups gives them."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"


class JoinRequest(NamedTuple):
    """What JoinGroup asks for. Timeouts in milliseconds; `protocols` in order of preference."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    must_know_member_id: bool = True
    may_skip_assignment: bool = False


class SyncRequest(NamedTuple):
    """What SyncGroup asks for. Only the leader sends assignments; None is what older clients leave unsaid."""

    member_id: str
    instance_id: str | None
    generation: int
    protocol_type: str | None = None
    protocol: str | None = None
    assignments: Mapping[str, bytes] = {}


class JoinAnswer(NamedTuple):
    """The outcome of a join; `members` (id, instance id, metadata) is for the leader only."""

    code: Code
    member_id: str = ""
    generation: int = -1
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    members: tuple[tuple[str, str | None, bytes], ...] = ()
    skip_assignment: bool = False


class SyncAnswer(NamedTuple):
    """The outcome of a sync: what this member was assigned."""

    code: Code
    assignment: bytes = b""
    protocol_type: str | None = None
    protocol: str | None = None


class Due(NamedTuple):
    """An answer for a request that waited (or that was just made)."""

    token: Token
    answer: JoinAnswer | SyncAnswer


@dataclass
class Member:
    """One member; `deadline` is when its session ends unless it is heard of."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    deadline: float
    assignment: bytes = b""
    join_token: Token | None = None
    sync_token: Token | None = None

    def metadata(self, protocol: str | None) -> bytes:
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")

    @property
    def waits(self) -> bool:
        return self.join_token is not None or self.sync_token is not None
