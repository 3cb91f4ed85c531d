"""Who reads which partition."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shared.bus.assignment import Partition, assign_by_topic

Topics = dict[str, list[int]]

topics_of = st.dictionaries(st.sampled_from("abcdefgh"), st.integers(0, 6), min_size=1).map(
    lambda sizes: {topic: list(range(size)) for topic, size in sizes.items()}
)
members_of = st.lists(st.sampled_from("uvwxyz"), min_size=1, unique=True)


def everywhere(topics: Topics, members: list[str]) -> dict[str, set[str]]:
    return {member: set(topics) for member in members}


def rounds(topics: Topics, subscribed: dict[str, set[str]], owned: dict[str, set[Partition]]) -> list[int]:
    """How much moves in each round of a cooperative rebalance, until nothing does; `owned` is changed."""
    moved = []
    while True:
        wanted = assign_by_topic(topics, subscribed, owned)
        others = {
            member: set().union(*(has for one, has in owned.items() if one != member))
            for member in subscribed
        }
        let_go = sum(len(owned.get(member, set()) - set(wanted[member])) for member in subscribed)
        for member in subscribed:
            owned[member] = set(wanted[member]) - others[member]
        moved.append(let_go)
        if not let_go:
            return moved


@given(topics_of, members_of, st.data())
def test_every_topic_is_even_whatever_was_owned_and_then_nothing_moves(
    topics: Topics, members: list[str], data: st.DataObject
) -> None:
    partitions = [(topic, number) for topic, numbers in topics.items() for number in numbers]
    owned: dict[str, set[Partition]] = {member: set() for member in members}
    for partition in partitions:
        owner = data.draw(st.sampled_from([*members, None]))
        if owner is not None:
            owned[owner].add(partition)
    assert len(rounds(topics, everywhere(topics, members), owned)) <= 2, "what was let go is given on at once"
    assert sorted(one for has in owned.values() for one in has) == sorted(partitions)
    for topic in topics:
        counts = [sum(name == topic for name, _ in has) for has in owned.values()]
        assert max(counts) - min(counts) <= 1
    spare = sum(len(numbers) % len(members) for numbers in topics.values())
    least = sum(len(numbers) // len(members) for numbers in topics.values())
    assert max(map(len, owned.values())) <= least + -(-spare // len(members))


@given(topics_of, members_of, members_of)
def test_members_that_come_and_go_move_no_more_than_they_must(
    topics: Topics, before: list[str], after: list[str]
) -> None:
    owned: dict[str, set[Partition]] = {member: set() for member in before}
    rounds(topics, everywhere(topics, before), owned)
    held = {member: set(owned.get(member, ())) for member in after}
    wanted = assign_by_topic(topics, everywhere(topics, after), held)
    for topic, numbers in topics.items():
        most = -(-len(numbers) // len(after))
        for member in after:
            has = {one for one in held[member] if one[0] == topic}
            lost = has - set(wanted[member])
            assert len(lost) <= max(0, len(has) - most) + 1, (
                "one odd partition may go for the sake of the whole"
            )


@given(topics_of, st.data())
def test_only_subscribers_read(topics: Topics, data: st.DataObject) -> None:
    subscribed = {member: data.draw(st.sets(st.sampled_from(sorted(topics)))) for member in "xyz"}
    wanted = assign_by_topic(topics, subscribed, {})
    for member, partitions in wanted.items():
        assert {topic for topic, _ in partitions} <= subscribed[member]
    read = sorted(one for partitions in wanted.values() for one in partitions)
    assert read == sorted(
        (topic, number) for topic, numbers in topics.items() for number in numbers
        if any(topic in names for names in subscribed.values())
    )  # fmt: skip


def test_two_processes_share_the_topic_in_which_the_work_is() -> None:
    """What the sticky assignors made of it: one process with all of `normal`."""
    topics = {name: [0, 1] for name in ("high", "low", "normal")}
    owned: dict[str, set[Partition]] = {
        "a": {(name, number) for name in topics for number in (0, 1)},
        "b": set(),
    }
    assert rounds(topics, everywhere(topics, ["a", "b"]), owned) == [3, 0]
    assert all(sorted(name for name, _ in has) == ["high", "low", "normal"] for has in owned.values())


def test_topics_of_one_partition_are_shared_out() -> None:
    topics = {str(number): [0] for number in range(10)}
    owned: dict[str, set[Partition]] = {"a": {(name, 0) for name in topics}, "b": set()}
    rounds(topics, everywhere(topics, ["a", "b"]), owned)
    assert sorted(map(len, owned.values())) == [5, 5]
