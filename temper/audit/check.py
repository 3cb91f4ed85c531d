"""The whole audit of a run's facts: pure.

Invariant: `check` is a function of the facts; an audit without findings means that every promise it lists holds for
every record that was read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from temper.audit.durability import check_checkpoints, check_coverage, check_memory, check_policies
from temper.audit.facts import RunFacts
from temper.audit.finding import Finding
from temper.audit.lineage import surviving
from temper.audit.losses import check_losses
from temper.audit.slots import PENDING, check_slots, slot_book
from temper.audit.tokens import check_tokens, token_book
from temper.audit.traces import check_traces
from temper.audit.training import check_steps, check_training


@dataclass(frozen=True, slots=True)
class Audit:
    run_id: str
    slots: int
    fates: Mapping[str, int]
    """Slots by fate; the values add up to `slots`."""
    tokens: Mapping[str, int]
    """Sampled training tokens by fate, `unresolved` among them; the values add up to all that was sampled."""
    steps: int
    repeated_steps: int
    """Step records that a later lineage replaced, or that were told twice."""
    policies: int
    traces: int | None
    """None where the run wrote none."""
    open_spans: int
    """Started and never ended: at work now, or killed."""
    ended: bool
    findings: tuple[Finding, ...]

    @property
    def pending(self) -> int:
        return sum(self.fates.get(name, 0) for name in PENDING)


def check(facts: RunFacts) -> Audit:
    lineage = surviving(facts.steps)
    book = slot_book(facts, lineage)
    findings = (
        *_check_unread(facts),
        *check_slots(facts, book),
        *check_losses(facts, book),
        *check_steps(lineage),
        *check_training(facts, book),
        *check_tokens(facts, lineage, book),
        *check_policies(facts),
        *check_checkpoints(facts),
        *check_coverage(facts, lineage),
        *check_memory(facts, lineage),
        *check_traces(facts, book),
    )
    spans = facts.spans
    return Audit(
        run_id=facts.run_id,
        slots=len(book.fates),
        fates=book.counts(),
        tokens=token_book(facts, lineage),
        steps=len(lineage),
        repeated_steps=len(facts.steps) - len(lineage),
        policies=len({policy.version for policy in facts.policies}),
        traces=None if spans is None else len({span.trace_id for span in spans}),
        open_spans=sum(span.end_ns is None for span in spans or ()),
        ended=facts.ended,
        findings=findings,
    )


def _check_unread(facts: RunFacts) -> tuple[Finding, ...]:
    return tuple(
        Finding("not readable", topic, f"{count:,} records are gone or unreadable: they prove nothing")
        for topic, count in sorted(facts.unread.items())
        if count
    )
