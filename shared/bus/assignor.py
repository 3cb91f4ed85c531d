"""`assign_by_topic` as a cooperative assignor of kafka-python.

Invariant (KIP-429): a partition is given to nobody while another member owns it: who loses it joins again once it has
let go, and the next round gives it on.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment

from shared.bus.assignment import Partition, assign_by_topic


class ByTopicAssignor(CooperativeStickyAssignor):  # type: ignore[misc]
    """The wire format of members is that of the cooperative sticky assignor."""

    name = "temper-by-topic"

    def assign(self, cluster: Any, members: Any) -> dict[str, Any]:
        known = {member.member_id: self.parse_member_metadata(member.metadata) for member in members}
        topics = {
            topic: sorted(cluster.partitions_for_topic(topic) or ())
            for one in known.values()
            for topic in one.subscription
        }
        owned: dict[str, set[Partition]] = {
            member: {(partition.topic, partition.partition) for partition in one.partitions}
            for member, one in known.items()
        }
        owners: dict[Partition, set[str]] = defaultdict(set)
        for member, partitions in owned.items():
            for partition in partitions:
                owners[partition].add(member)
        wanted = assign_by_topic(
            topics, {member: set(one.subscription) for member, one in known.items()}, owned
        )
        answer = {}
        for member, given in wanted.items():
            by_topic: dict[str, list[int]] = defaultdict(list)
            for topic, number in given:
                if owners[topic, number] <= {member}:
                    by_topic[topic].append(number)
            answer[member] = ConsumerProtocolAssignment(self.version, sorted(by_topic.items()), b"")
        return answer
