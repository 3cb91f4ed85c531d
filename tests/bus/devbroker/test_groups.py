"""Consumer groups with real clients: who gets what, when members come, go, crash or the broker restarts."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaConnectionError, OffsetMetadataTooLargeError
from kafka.structs import OffsetAndMetadata

from shared.bus.devbroker.faults import FaultAction, FaultRule
from shared.bus.devbroker.running import RunningBroker
from shared.bus.devbroker.settings import DevBrokerSettings
from tests.bus.devbroker.clients import BrokerProcess, admin, consumer, create, eventually, poll, send

pytestmark = pytest.mark.timeout(60)

FAST = {"session_timeout_ms": 2_000, "heartbeat_interval_ms": 100, "group_id": "g"}


class PolledMember:
    """A consumer that a thread polls, so that several of them can rebalance together."""

    def __init__(self, bootstrap: str, **config: Any) -> None:
        self.consumer = KafkaConsumer(
            bootstrap_servers=bootstrap, enable_auto_commit=False, fetch_max_wait_ms=50, **{**FAST, **config}
        )
        self.consumer.subscribe(["t"])
        self.assigned: set[int] = set()
        self.received: list[bytes] = []
        self._leave = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._leave.is_set():
            try:
                polled = poll(self.consumer, 50)
            except KafkaConnectionError:  # raised by poll() while the broker is down
                continue
            for records in polled.values():
                self.received.extend(record.value for record in records)
            self.assigned = {partition.partition for partition in self.consumer.assignment()}

    def leave(self) -> None:
        self.stop_polling()
        self.consumer.close()

    def stop_polling(self) -> None:
        self._leave.set()
        self._thread.join(10)


def share(*members: PolledMember, count: int) -> bool:
    """Whether the members have all partitions between them, each exactly once and everybody some."""
    owned = sorted(partition for member in members for partition in member.assigned)
    return owned == list(range(count)) and all(member.assigned for member in members)


@pytest.mark.parametrize("strategy", ["eager", "cooperative"])
def test_partitions_move_when_members_join_and_leave(broker: RunningBroker, strategy: str) -> None:
    from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
    from kafka.coordinator.assignors.range import RangePartitionAssignor

    assignor = {"eager": RangePartitionAssignor, "cooperative": CooperativeStickyAssignor}[strategy]
    config = {"partition_assignment_strategy": [assignor]}
    create(broker.bootstrap, "t", 4)
    first = PolledMember(broker.bootstrap, **config)
    eventually(lambda: share(first, count=4))
    second = PolledMember(broker.bootstrap, **config)
    eventually(lambda: share(first, second, count=4))
    third = PolledMember(broker.bootstrap, **config)
    eventually(lambda: share(first, second, third, count=4))
    second.leave()
    eventually(lambda: share(first, third, count=4))
    first.leave()
    eventually(lambda: share(third, count=4))
    third.leave()
    with admin(broker.bootstrap) as client:
        assert client.describe_groups(["g"])["g"]["group_state"] == "Empty"


def test_a_crashed_members_partitions_move_after_its_session(broker: RunningBroker) -> None:
    create(broker.bootstrap, "t", 2)
    survivor, victim = PolledMember(broker.bootstrap), PolledMember(broker.bootstrap, client_id="victim")
    eventually(lambda: share(survivor, victim, count=2))
    broker.faults.add(FaultRule(FaultAction.FREEZE, client_id="victim"))  # nothing of it is heard any more
    eventually(lambda: share(survivor, count=2))
    broker.faults.clear()
    eventually(lambda: share(survivor, victim, count=2))
    victim.leave()
    survivor.leave()


def test_a_static_member_comes_back_to_its_partitions_without_a_rebalance(broker: RunningBroker) -> None:
    create(broker.bootstrap, "t", 2)
    one = PolledMember(broker.bootstrap, group_instance_id="one", session_timeout_ms=10_000)
    two = PolledMember(broker.bootstrap, group_instance_id="two", session_timeout_ms=10_000)
    eventually(lambda: share(one, two, count=2))
    kept, generation = set(two.assigned), one.consumer._coordinator._generation.generation_id
    two.leave()  # a static member does not say goodbye
    again = PolledMember(broker.bootstrap, group_instance_id="two", session_timeout_ms=10_000)
    eventually(lambda: again.assigned == kept)
    assert one.consumer._coordinator._generation.generation_id == generation
    again.leave()
    one.leave()


def test_commits_keep_offset_and_metadata(broker: RunningBroker) -> None:
    create(broker.bootstrap, "t", 1)
    send(broker.bootstrap, "t", [b"%d" % index for index in range(10)])
    partition = TopicPartition("t", 0)
    note = "n" * 4096
    with consumer(broker.bootstrap, "t", **FAST) as client:
        eventually(lambda: poll(client, 200))
        client.commit({partition: OffsetAndMetadata(4, note, -1)})
    with consumer(broker.bootstrap, "t", **FAST) as client:
        found = client.committed(partition, metadata=True)
        assert (found.offset, found.metadata) == (4, note)
        records = eventually(lambda: poll(client, 200))
        assert records[partition][0].offset == 4
        with pytest.raises(OffsetMetadataTooLargeError):
            client.commit({partition: OffsetAndMetadata(5, note + "x", -1)})
        assert client.committed(partition) == 4


def test_commits_and_membership_survive_a_kill_of_the_broker(tmp_path: Any) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        create(broker.bootstrap, "t", 2)
        one, two = PolledMember(broker.bootstrap), PolledMember(broker.bootstrap)
        eventually(lambda: share(one, two, count=2))
        generation = one.consumer._coordinator._generation.generation_id
        one.stop_polling()
        one.consumer.commit({TopicPartition("t", min(one.assigned)): OffsetAndMetadata(0, "mark", -1)})
        broker.kill_and_restart()
        with admin(broker.bootstrap) as client:
            described = client.describe_groups(["g"])["g"]
            assert described["group_state"] == "Stable"
            assert len(described["members"]) == 2
            offsets = client.list_group_offsets("g")["g"]
            assert [offset.metadata for offset in offsets.values() if offset.offset == 0] == ["mark"]
        assert two.consumer._coordinator._generation.generation_id == generation
        send(broker.bootstrap, "t", [b"after"])
        two.leave()
        one.consumer.close()


def test_group_administration(broker: RunningBroker) -> None:
    create(broker.bootstrap, "t", 1)
    member = PolledMember(broker.bootstrap)
    eventually(lambda: share(member, count=1))
    with admin(broker.bootstrap) as client:
        assert [group["group_id"] for group in client.list_groups()] == ["g"]
        described = client.describe_groups(["g"])["g"]
        assert described["group_state"] == "Stable"
        assert len(described["members"]) == 1
        assert client.delete_groups(["g"])["g"] != "OK"  # it has a member
        member.leave()
        client.alter_group_offsets("g", {TopicPartition("t", 0): OffsetAndMetadata(0, "", -1)})
        assert client.list_group_offsets("g")["g"][TopicPartition("t", 0)].offset == 0
        client.delete_group_offsets("g", [TopicPartition("t", 0)])
        assert client.list_group_offsets("g")["g"] == {}
        client.alter_group_offsets("g", {TopicPartition("t", 0): OffsetAndMetadata(0, "", -1)})
        client.delete_groups(["g"])
        assert client.list_groups() == []


def test_deleting_a_topic_forgets_its_committed_offsets(broker: RunningBroker) -> None:
    create(broker.bootstrap, "t", 1)
    with admin(broker.bootstrap) as client:
        client.alter_group_offsets("g", {TopicPartition("t", 0): OffsetAndMetadata(0, "", -1)})
        client.delete_topics(["t"])
        assert client.list_group_offsets("g").get("g", {}) == {}


def test_a_restarted_broker_keeps_commits_of_many_groups(
    make_settings: Callable[..., DevBrokerSettings],
) -> None:
    settings = make_settings()
    partition = TopicPartition("t", 0)
    with RunningBroker(settings) as broker, admin(broker.bootstrap) as client:
        create(broker.bootstrap, "t", 1)
        for group in range(20):
            for offset in range(5):
                client.alter_group_offsets(
                    f"g{group}", {partition: OffsetAndMetadata(offset + group, "", -1)}
                )
    with RunningBroker(settings) as broker, admin(broker.bootstrap) as client:
        for group in range(20):
            assert client.list_group_offsets(f"g{group}")[f"g{group}"][partition].offset == 4 + group
