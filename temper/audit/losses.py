"""Nothing was lost between two services.

Invariant checked: a record that its service has finished has left what it owes: a task within its deadline one
trajectory a slot, an attempt a reward; or it waits in a retry topic, or is a dead letter. Only slots without a fate are asked about: what
the learner has resolved, or the scheduler has given up, needs no explanation.
"""

from __future__ import annotations

from collections.abc import Iterator

from temper.audit.facts import AttemptFact, RunFacts, SlotKey, TaskFact
from temper.audit.finding import Finding, slot_name
from temper.audit.slots import PENDING, SlotBook

QUEUED, UNJUDGED, _ = PENDING


def check_losses(facts: RunFacts, book: SlotBook) -> Iterator[Finding]:
    tasks: dict[SlotKey, list[TaskFact]] = {}
    for task in facts.tasks:
        if task.purpose == "train":
            for index in task.samples:
                tasks.setdefault((task.group_id, index), []).append(task)
    attempts: dict[SlotKey, list[AttemptFact]] = {}
    for attempt in facts.attempts:
        attempts.setdefault(attempt.slot, []).append(attempt)
    for slot, fate in sorted(book.fates.items()):
        name = slot_name(slot)
        if slot[0] in facts.abandoned:
            continue
        if fate == QUEUED and all(task.finished and not task.expired for task in tasks.get(slot, ())):
            where = ", ".join(task.position for task in tasks.get(slot, ()))
            yield Finding("lost", name, f"rollout finished its task ({where}) and left no trajectory of it")
        elif fate == UNJUDGED:
            made = [a for a in attempts[slot] if not (a.demonstration or a.infrastructure)]
            if made and all(attempt.finished for attempt in made):
                where = ", ".join(attempt.position for attempt in made)
                yield Finding("lost", name, f"verifier finished its trajectory ({where}) and left no reward")
