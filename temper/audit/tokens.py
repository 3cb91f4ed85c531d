"""Every sampled token is booked once, to what became of it.

Invariant checked: what a step books to a fate are the tokens of the attempts that it names with that fate; and all
steps together book no more than was sampled. `duplicate`, `invalid`, `expired` and `surplus` also hold attempts that no
slot names (a second attempt, a record for no slot of the run, one that came after its group was given up or complete).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from shared.contracts import Step
from shared.plain_errors import counted
from temper.audit.facts import RunFacts
from temper.audit.finding import Finding
from temper.audit.slots import SlotBook

UNNAMED = frozenset({"duplicate", "invalid", "expired", "surplus"})
UNRESOLVED = "unresolved"


def token_book(facts: RunFacts, lineage: Sequence[Step]) -> dict[str, int]:
    """Sampled training tokens by fate; `unresolved` is what no step has booked. The sum is all that was sampled."""
    booked = sum((Counter(step.tokens) for step in lineage), Counter())
    sampled = sum(attempt.sampled_tokens for attempt in facts.attempts if attempt.purpose == "train")
    return {**dict(booked.most_common()), UNRESOLVED: sampled - booked.total()}


def check_tokens(facts: RunFacts, lineage: Sequence[Step], book: SlotBook) -> Iterator[Finding]:
    sizes = {attempt.trajectory_id: attempt.sampled_tokens for attempt in facts.attempts}
    found: dict[int, Counter[str]] = {step.step: Counter() for step in lineage}
    for bookings in book.bookings.values():
        for booking in bookings:
            found[booking.step.step][booking.fate] += sizes.get(booking.trajectory_id, 0)
    for step in lineage:
        for fate in sorted({*step.tokens, *found[step.step]}):
            said, held = step.tokens.get(fate, 0), found[step.step][fate]
            if said < held or (said > held and fate not in UNNAMED):
                text = f"books {counted(said, f'{fate} token')}; its trajectories hold {held}"
                yield Finding("ledger", f"step {step.step}", text)
    unresolved = token_book(facts, lineage)[UNRESOLVED]
    if unresolved < 0 and not any(facts.unread.values()):
        yield Finding(
            "ledger", "the run", f"its steps book {counted(-unresolved, 'token')} more than were sampled"
        )
