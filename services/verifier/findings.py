"""What makes the verifier ask for a domain to be held back, and the words for it.

Invariant: a finding names the domain, the cause, and evidence that somebody can look up: trajectory ids, verdicts,
fault texts. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from services.verifier.auditor.repetition import Disagreement
from services.verifier.auditor.rules import Broken
from services.verifier.breaker import Tripped
from shared.verification.protocol import outward

Cause = Literal["flaky", "faults", "flags"]


@dataclass(frozen=True, slots=True)
class Finding:
    domain: str
    cause: Cause
    reason: str
    evidence: dict[str, Any]


def flaky(domain: str, examples: Sequence[Disagreement]) -> Finding:
    newest = examples[-1]
    return Finding(
        domain,
        "flaky",
        f"it gives one attempt different verdicts ({newest}): mend its check, then lift it",
        {"attempts": [{"trajectory_id": e.trajectory_id, "verdicts": list(e.verdicts)} for e in examples]},
    )


def broken_checks(tripped: Tripped) -> Finding:
    latest = [outward(text, 300) for text in tripped.latest]
    return Finding(
        tripped.domain,
        "faults",
        f"{tripped.faults} of its last {tripped.checks} attempts and checks ended in faults of ours "
        f"({outward(latest[-1], 160)}): mend it, then lift it",
        {"faults": tripped.faults, "checks": tripped.checks, "latest": latest},
    )


def flagged(broken: Broken) -> Finding:
    return Finding(
        broken.domain,
        "flags",
        f"{broken.flagged} of the last {broken.attempts} attempts at it are flagged "
        f"{broken.flag}: look at them, then lift it or write a rule that allows it",
        {
            "flag": broken.flag,
            "flagged": broken.flagged,
            "attempts": broken.attempts,
            "trajectory_ids": list(broken.trajectory_ids),
        },
    )
