"""The group machine on its own, under any order of joins, syncs, heartbeats, leaves and passing time."""

import itertools
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from shared.bus.devbroker.codes import Code
from shared.bus.devbroker.coordinator import restore_group, snapshot_group
from shared.bus.devbroker.group_messages import (
    Due,
    GroupState,
    JoinAnswer,
    JoinRequest,
    SyncAnswer,
    SyncRequest,
)
from shared.bus.devbroker.groups import Group

SESSION, REBALANCE = 100, 300


def new_group(initial_delay: int = 0) -> Group:
    numbers = itertools.count()
    return Group("g", lambda stem: f"{stem}-{next(numbers)}", initial_delay)


def request(member_id: str = "", instance: str | None = None, **changes: Any) -> JoinRequest:
    values: dict[str, Any] = {
        "member_id": member_id,
        "instance_id": instance,
        "client_id": "c",
        "client_host": "h",
        "session_timeout_ms": SESSION,
        "rebalance_timeout_ms": REBALANCE,
        "protocol_type": "consumer",
        "protocols": (("range", b"r"), ("sticky", b"s")),
        "must_know_member_id": False,
    }
    return JoinRequest(**{**values, **changes})


def joined(due: list[Due], token: object) -> JoinAnswer:
    (answer,) = [item.answer for item in due if item.token == token]
    assert isinstance(answer, JoinAnswer)
    return answer


def synced(due: list[Due], token: object) -> SyncAnswer:
    (answer,) = [item.answer for item in due if item.token == token]
    assert isinstance(answer, SyncAnswer)
    return answer


def two_members(group: Group) -> tuple[str, str]:
    """A stable group of two: the ids of the leader and the follower, assigned b"a" and b"b"."""
    leader = joined(group.join("j1", request(), 0), "j1").member_id
    assert group.join("j2", request(), 0) == []
    due = group.join("j1b", request(leader), 0)
    follower = joined(due, "j2").member_id
    assert joined(due, "j1b").leader == leader
    assert len(joined(due, "j1b").members) == 2
    assert joined(due, "j2").members == ()
    assert group.sync("s2", SyncRequest(follower, None, 2), 0) == []
    due = group.sync("s1", SyncRequest(leader, None, 2, assignments={leader: b"a", follower: b"b"}), 0)
    assert (synced(due, "s1").assignment, synced(due, "s2").assignment) == (b"a", b"b")
    assert group.state is GroupState.STABLE
    return leader, follower


def test_an_id_is_given_first_where_the_client_knows_how() -> None:
    group = new_group()
    answer = joined(group.join("j", request(must_know_member_id=True), 0), "j")
    assert answer.code is Code.MEMBER_ID_REQUIRED
    assert not group.members
    assert joined(group.join("k", request(answer.member_id), 1), "k").code is Code.NONE
    group.join("l", request(must_know_member_id=True), 1)
    group.tick(SESSION + 1)
    assert not group.pending, "an id that nobody used lapses"


def test_a_silent_member_is_removed_and_the_rest_rebalance() -> None:
    group = new_group()
    leader, follower = two_members(group)
    assert group.heartbeat(follower, None, 2, 90) is Code.NONE
    group.tick(SESSION)
    assert set(group.members) == {follower}
    assert group.heartbeat(follower, None, 2, 110) is Code.REBALANCE_IN_PROGRESS
    assert group.heartbeat(leader, None, 2, 110) is Code.UNKNOWN_MEMBER_ID
    answer = joined(group.join("j", request(follower), 120), "j")
    assert (answer.leader, answer.generation) == (follower, 3)


def test_those_who_do_not_rejoin_in_time_are_left_behind() -> None:
    group = new_group()
    leader, follower = two_members(group)
    assert group.join("new", request(), 10) == []
    assert group.join("again", request(leader), 20) == []
    for now in range(50, REBALANCE, 50):
        assert group.heartbeat(follower, None, 2, now) is Code.REBALANCE_IN_PROGRESS
        assert group.tick(now) == []
    due = group.tick(10 + REBALANCE)
    assert joined(due, "new").generation == joined(due, "again").generation == 3
    assert follower not in group.members


def test_a_leader_that_never_syncs_is_removed() -> None:
    group = new_group()
    leader = joined(group.join("j1", request(), 0), "j1").member_id
    group.join("j2", request(), 0)
    follower = joined(group.join("j1b", request(leader), 0), "j2").member_id
    group.sync("s2", SyncRequest(follower, None, 2), 0)
    for now in range(50, REBALANCE, 50):
        group.heartbeat(leader, None, 2, now)
        assert group.tick(now) == []
    group.heartbeat(leader, None, 2, REBALANCE - 1)
    assert group.next_deadline() == REBALANCE
    due = group.tick(REBALANCE)
    assert synced(due, "s2").code is Code.REBALANCE_IN_PROGRESS
    assert set(group.members) == {follower}


def test_the_protocol_that_all_support_and_most_prefer_is_chosen() -> None:
    group = new_group()
    first = joined(group.join("1", request(protocols=(("a", b""), ("b", b""), ("c", b""))), 0), "1").member_id
    group.join("2", request(protocols=(("c", b"2"), ("b", b"2"))), 0)
    due = group.join("1b", request(first, protocols=(("a", b""), ("c", b"1"), ("b", b"1"))), 0)
    assert joined(due, "1b").protocol == "c"
    refused = joined(group.join("3", request(protocols=(("a", b""),)), 0), "3")
    assert refused.code is Code.INCONSISTENT_GROUP_PROTOCOL
    refused = joined(group.join("4", request(protocol_type="connect"), 0), "4")
    assert refused.code is Code.INCONSISTENT_GROUP_PROTOCOL


def test_commits_are_for_members_of_this_generation_or_for_anybody_in_an_empty_group() -> None:
    group = new_group()
    assert group.may_commit("", None, -1, 0) is Code.NONE
    leader, _ = two_members(group)
    assert group.may_commit(leader, None, 2, 0) is Code.NONE
    assert group.may_commit(leader, None, 1, 0) is Code.ILLEGAL_GENERATION
    assert group.may_commit("", None, -1, 0) is Code.UNKNOWN_MEMBER_ID
    group.join("new", request(), 0)
    assert group.may_commit(leader, None, 2, 0) is Code.NONE, (
        "the old generation may still say how far it came"
    )


def test_a_static_member_takes_its_place_and_the_old_one_is_fenced() -> None:
    group = new_group()
    old = joined(group.join("j", request(instance="i"), 0), "j").member_id
    group.sync("s", SyncRequest(old, "i", 1, assignments={old: b"mine"}), 0)
    answer = joined(group.join("k", request(instance="i"), 10), "k")
    assert (answer.generation, answer.leader) == (1, old), "it must not think that it leads"
    assert synced(group.sync("t", SyncRequest(answer.member_id, "i", 1), 10), "t").assignment == b"mine"
    assert group.heartbeat(old, "i", 1, 20) is Code.FENCED_INSTANCE_ID
    assert joined(group.join("l", request(old, instance="i"), 20), "l").code is Code.FENCED_INSTANCE_ID
    assert group.leave("", "i", 30)[0] is Code.NONE
    assert group.state is GroupState.EMPTY


def test_a_static_leader_that_can_skip_the_assignment_does() -> None:
    group = new_group()
    old = joined(group.join("j", request(instance="i"), 0), "j").member_id
    group.sync("s", SyncRequest(old, "i", 1, assignments={old: b"mine"}), 0)
    answer = joined(group.join("k", request(instance="i", may_skip_assignment=True), 10), "k")
    assert answer.skip_assignment
    assert answer.leader == answer.member_id
    assert len(answer.members) == 1


def test_the_first_generation_waits_for_those_who_come_together() -> None:
    group = new_group(initial_delay=50)
    assert group.join("1", request(), 0) == []
    assert group.next_deadline() == 50
    assert group.join("2", request(), 40) == []
    assert group.tick(50) == []
    due = group.tick(90)
    assert joined(due, "1").generation == joined(due, "2").generation == 1


def test_a_snapshot_brings_the_same_group_back() -> None:
    group = new_group()
    leader, follower = two_members(group)
    again = new_group()
    restore_group(again, snapshot_group(group), 1_000)
    assert again.heartbeat(follower, None, 2, 1_050) is Code.NONE
    due = again.sync("s", SyncRequest(leader, None, 2), 1_050)
    assert synced(due, "s").assignment == b"a"
    assert snapshot_group(again) == snapshot_group(group)


@pytest.mark.parametrize(
    "code_for", [("nobody", 2, Code.UNKNOWN_MEMBER_ID), (None, 7, Code.ILLEGAL_GENERATION)]
)
def test_strangers_are_refused(code_for: tuple[str | None, int, Code]) -> None:
    group = new_group()
    leader, _ = two_members(group)
    member, generation, code = code_for
    assert group.heartbeat(member or leader, None, generation, 0) is code
    assert synced(group.sync("s", SyncRequest(member or leader, None, generation), 0), "s").code is code
    if member:
        assert group.leave(member, None, 0)[0] is code
        assert joined(group.join("j", request(member), 0), "j").code is code


class GroupUnderAnything(RuleBasedStateMachine):
    """Members of three kinds do what they like; the machine must keep its promises."""

    tokens = Bundle("tokens")
    known = Bundle("known")

    def __init__(self) -> None:
        super().__init__()
        self.group = new_group()
        self.now = 0.0
        self.numbers = itertools.count()
        self.waiting: set[int] = set()
        self.generations: dict[int, tuple[str, str | None]] = {}

    def take(self, due: list[Due]) -> list[str]:
        """Check every answer; the member ids that were told."""
        told = []
        for token, answer in due:
            assert token in self.waiting, "answered twice, or never asked"
            self.waiting.discard(token)  # type: ignore[arg-type]
            if isinstance(answer, JoinAnswer) and answer.member_id:
                told.append(answer.member_id)
                if answer.code is Code.NONE:
                    seen = self.generations.setdefault(answer.generation, (answer.leader, answer.protocol))
                    assert seen[1] == answer.protocol, "two protocols in one generation"
        return told

    def token(self) -> int:
        number = next(self.numbers)
        self.waiting.add(number)
        return number

    @rule(target=known, instance=st.sampled_from([None, None, "i", "j"]), must_know=st.booleans())
    def join_new(self, instance: str | None, must_know: bool) -> Any:
        due = self.group.join(
            self.token(), request(instance=instance, must_know_member_id=must_know), self.now
        )
        return multiple(*self.take(due), *self.group.members)

    @rule(member=known, change=st.booleans())
    def rejoin(self, member: str, change: bool) -> None:
        found = self.group.members.get(member)
        protocols = (("range", b"x"),) if change else (("range", b"r"), ("sticky", b"s"))
        instance = found.instance_id if found else None
        self.take(self.group.join(self.token(), request(member, instance, protocols=protocols), self.now))

    @rule(member=known, behind=st.sampled_from([0, 0, 0, 1]))
    def sync(self, member: str, behind: int) -> None:
        share = {name: name.encode() for name in self.group.members}
        found = self.group.members.get(member)
        wanted = SyncRequest(
            member, found.instance_id if found else None, self.group.generation - behind, assignments=share
        )
        for token, answer in list(due := self.group.sync(self.token(), wanted, self.now)):
            if isinstance(answer, SyncAnswer) and answer.code is Code.NONE and token == max(self.waiting):
                assert answer.assignment in (member.encode(), b"") or found is None or found.instance_id
        self.take(due)

    @rule(member=known)
    def heartbeat(self, member: str) -> None:
        self.group.heartbeat(member, None, self.group.generation, self.now)

    @rule(member=consumes(known))
    def leave(self, member: str) -> None:
        self.take(self.group.leave(member, None, self.now)[1])

    @rule(step=st.sampled_from([1, 50, 100, 300]))
    def pass_time(self, step: int) -> None:
        self.now += step
        self.take(self.group.tick(self.now))

    @invariant()
    def waiting_requests_are_exactly_the_members_tokens(self) -> None:
        held = [t for m in self.group.members.values() for t in (m.join_token, m.sync_token) if t is not None]
        assert sorted(held) == sorted(self.waiting)

    @invariant()
    def the_state_fits_the_members(self) -> None:
        group = self.group
        if not group.members:
            assert group.state is GroupState.EMPTY or group.pending
        if group.state in (GroupState.STABLE, GroupState.COMPLETING):
            assert group.leader in group.members
            assert group.protocol is not None
            assert not any(m.join_token for m in group.members.values() if m.join_token is not None)
        if group.state is GroupState.STABLE:
            assert all(m.sync_token is None for m in group.members.values())
        assert set(group.instances.values()) <= set(group.members)

    @invariant()
    def nothing_waits_for_ever(self) -> None:
        deadline = self.group.next_deadline()
        if self.waiting:
            assert deadline is not None, "a request waits and no time will come to answer it"
        if self.group.members:
            assert deadline is not None


TestGroupUnderAnything = GroupUnderAnything.TestCase
TestGroupUnderAnything.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
