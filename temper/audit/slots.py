"""Every slot ends once.

Invariant checked: each scheduled training slot is exactly one of trained, dropped with a cause, dead-lettered or
pending; none is booked twice in the surviving lineage; nothing is booked that was never scheduled.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from shared.contracts import Fate, Step
from temper.audit.facts import RunFacts, SlotKey
from temper.audit.finding import Finding, slot_name

PENDING = ("queued", "awaits verification", "awaits training")
"""Where a slot without a fate stands: no trajectory, no reward, both."""


@dataclass(frozen=True, slots=True)
class Booking:
    """What a step wrote about a slot."""

    step: Step
    fate: Fate
    trajectory_id: str
    traceparent: str


@dataclass(frozen=True, slots=True)
class SlotBook:
    """`fates[slot]` is `trained`, a cause of dropping, `dead-lettered`, or one of `PENDING`."""

    fates: Mapping[SlotKey, str]
    bookings: Mapping[SlotKey, Sequence[Booking]]

    def counts(self) -> dict[str, int]:
        return dict(Counter(self.fates.values()).most_common())


def booked(lineage: Sequence[Step]) -> Iterator[tuple[SlotKey, Booking]]:
    for step in lineage:
        for group in step.groups:
            for at, (index, fate) in enumerate(zip(group.samples, group.fates, strict=True)):
                trajectory = group.trajectory_ids[at] if at < len(group.trajectory_ids) else ""
                trace = group.traceparents[at] if at < len(group.traceparents) else ""
                yield (group.group_id, index), Booking(step, fate, trajectory, trace)


def slot_book(facts: RunFacts, lineage: Sequence[Step]) -> SlotBook:
    """The fate of every training slot that was scheduled or booked."""
    bookings: dict[SlotKey, list[Booking]] = {}
    for slot, booking in booked(lineage):
        bookings.setdefault(slot, []).append(booking)
    noticed = {
        (group.group_id, index): fate
        for notice in facts.notices
        for group in notice.groups
        for index, fate in zip(group.samples, group.fates, strict=True)
    }
    dead = _dead_slots(facts)
    attempted = {attempt.slot for attempt in facts.attempts}
    judged = {reward.slot for reward in facts.rewards}
    fates: dict[SlotKey, str] = {}
    for slot in scheduled(facts) | bookings.keys():
        if slot in bookings:
            fates[slot] = bookings[slot][-1].fate
        elif slot in noticed:
            fates[slot] = noticed[slot]
        elif slot in dead:
            fates[slot] = "dead-lettered"
        else:
            fates[slot] = PENDING[(slot in attempted) + (slot in attempted and slot in judged)]
    return SlotBook(fates, bookings)


def _dead_slots(facts: RunFacts) -> set[SlotKey]:
    """Slots of the tasks and attempts that dead letters were made from."""
    slots = {task.position: tuple((task.group_id, index) for index in task.samples) for task in facts.tasks}
    slots |= {attempt.position: (attempt.slot,) for attempt in facts.attempts}
    return {slot for letter in facts.dead for slot in slots.get(letter.origin, ())}


def scheduled(facts: RunFacts) -> set[SlotKey]:
    return {
        (task.group_id, index) for task in facts.tasks if task.purpose == "train" for index in task.samples
    }


def check_slots(facts: RunFacts, book: SlotBook) -> Iterator[Finding]:
    known = scheduled(facts)
    for slot, bookings in sorted(book.bookings.items()):
        if len(bookings) > 1:
            trained = sum(booking.fate == "trained" for booking in bookings)
            where = ", ".join(f"{booking.fate} in step {booking.step.step}" for booking in bookings)
            yield Finding(
                "trained twice" if trained > 1 else "booked twice",
                slot_name(slot),
                f"{where}: a slot is resolved once; look for two learners of one run",
            )
        if slot not in known:
            yield Finding(
                "never scheduled",
                slot_name(slot),
                f"step {bookings[0].step.step} booked it as {bookings[0].fate}, no task has it",
            )
    for letter in facts.dead:
        if not letter.error_type and not letter.error_message:
            yield Finding(
                "no cause", letter.origin or "a dead letter", f"dead.{letter.service} names no cause"
            )
    origins = {letter.origin for letter in facts.dead}
    for record in facts.unreadable:
        position, _, why = record.partition(": ")
        if position not in origins:
            yield Finding("silent loss", position, f"it cannot be read ({why}) and is no dead letter")
