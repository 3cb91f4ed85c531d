"""Which member of a consumer group reads which partition: evenly in every topic, and what is read stays where it is.

Invariant: of each topic a subscriber has as many partitions as any other, or one more; nobody has more of these
odd ones than its share of them all, rounded up; nothing moves that need not for that. Assigned again with what
everybody then owns, nothing moves any more.

Why not the sticky assignors of KIP-54 and KIP-429: they even out the sum over all topics. Ours are not alike: one of
two rollout processes was given all `tasks.*.normal` and the other the topics in which nothing is written, and the run
was half as fast.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

Partition = tuple[str, int]


def assign_by_topic(
    topics: Mapping[str, Sequence[int]],
    subscribed: Mapping[str, Collection[str]],
    owned: Mapping[str, Collection[Partition]],
) -> dict[str, list[Partition]]:
    """Partitions by member id. `topics`: the partitions that there are; `subscribed`: topics by member; `owned`: what
    each member reads now (a partition that two claim is nobody's)."""
    claims: dict[Partition, list[str]] = {}
    for member in sorted(owned):
        for partition in owned[member]:
            claims.setdefault(partition, []).append(member)
    owner = {partition: members[0] for partition, members in claims.items() if len(members) == 1}
    readers = {
        topic: [member for member in sorted(subscribed) if topic in subscribed[member]]
        for topic in sorted(topics)
    }
    held = {
        topic: {
            member: sorted(number for number in topics[topic] if owner.get((topic, number)) == member)
            for member in members
        }
        for topic, members in readers.items()
        if members
    }
    odd = _odd_ones(topics, held, len(subscribed))
    found: dict[str, list[Partition]] = {member: [] for member in subscribed}
    for topic, members in held.items():
        least = len(topics[topic]) // len(members)
        kept = {member: has[: least + (member in odd[topic])] for member, has in members.items()}
        free = sorted(set(topics[topic]) - {number for has in kept.values() for number in has})
        for member, has in kept.items():
            missing = least + (member in odd[topic]) - len(has)
            found[member] += [(topic, number) for number in sorted(has + free[:missing])]
            free = free[missing:]
    return found


def _odd_ones(
    topics: Mapping[str, Sequence[int]], held: Mapping[str, Mapping[str, Sequence[int]]], members: int
) -> dict[str, set[str]]:
    """By topic, who has one partition more than the others: first those who have it now, up to their share, then
    whoever has the fewest of them."""
    wanted = {topic: len(topics[topic]) % len(readers) for topic, readers in held.items()}
    share = -(-sum(wanted.values()) // max(1, members))
    odd: dict[str, set[str]] = {topic: set() for topic in held}
    count: dict[str, int] = {}
    for topic, readers in held.items():
        least = len(topics[topic]) // len(readers)
        for member, has in readers.items():
            if len(has) > least and len(odd[topic]) < wanted[topic] and count.get(member, 0) < share:
                odd[topic].add(member)
                count[member] = count.get(member, 0) + 1
    for topic, readers in held.items():
        while len(odd[topic]) < wanted[topic]:
            member = min(set(readers) - odd[topic], key=lambda one: (count.get(one, 0), one))
            odd[topic].add(member)
            count[member] = count.get(member, 0) + 1
    return odd
