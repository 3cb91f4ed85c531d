"""Which steps count.

Invariant: the surviving lineage holds each step number once, and what it holds is what the newest checkpoint was
built on. A learner that restarts from an older checkpoint makes some steps again: the later record of a step
replaces the earlier one and everything after it. A record told again word for word changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from shared.contracts import Step


def surviving(steps: Iterable[Step]) -> tuple[Step, ...]:
    """The steps of the lineage that survived, by number. `steps` in log order."""
    kept: dict[int, Step] = {}
    for step in steps:
        if _same(kept.get(step.step), step):
            continue
        kept = {number: older for number, older in kept.items() if number < step.step}
        kept[step.step] = step
    return tuple(kept[number] for number in sorted(kept))


def _same(known: Step | None, step: Step) -> bool:
    """The same step told twice: what it booked and made, not when or how long it took to say so."""
    if known is None:
        return False
    return (known.lineage, known.policy_version, known.groups, known.loss) == (
        step.lineage,
        step.policy_version,
        step.groups,
        step.loss,
    )
