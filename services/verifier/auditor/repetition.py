"""Whether a domain gives one attempt one verdict.

Invariant: faults are no verdicts and prove nothing; a domain that runs no code of the policy is flaky by the first
attempt with two verdicts, one that does only by several and a share of them, for a program that throws dice must
not be able to stop a domain. Pure and of bounded memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from shared.verification.judgement import Judgement

LEAST_WITH_CODE = 5
SHARE_WITH_CODE = 0.1
"""Of repeated attempts. A program of the policy with a coin in it disagrees half of the time, so a tenth means that
every fifth attempt throws one, or that the domain itself does: either way a person has to look."""
_WINDOW = 256
_KEPT = 5


@dataclass(frozen=True, slots=True)
class Disagreement:
    """One attempt and its different verdicts, in the order in which they were found."""

    trajectory_id: str
    verdicts: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.trajectory_id}: {', '.join(self.verdicts)}"


@dataclass(slots=True)
class _History:
    repeated: deque[bool] = field(default_factory=lambda: deque(maxlen=_WINDOW))
    """True is a disagreement."""
    examples: deque[Disagreement] = field(default_factory=lambda: deque(maxlen=_KEPT))


def said(judgement: Judgement) -> str:
    """What two checks must agree on, as text: the verdict, and the number of a partial one."""
    return f"partial {judgement.reward:g}" if judgement.verdict == "partial" else judgement.verdict


class Repetitions:
    """Tell it of every attempt that was checked more than once."""

    def __init__(self) -> None:
        self._domains: dict[str, _History] = {}

    def observe(
        self, domain: str, trajectory_id: str, judgements: Sequence[Judgement], *, ran_code: bool
    ) -> tuple[Disagreement, ...]:
        """The evidence that the domain is flaky, when it is; empty otherwise."""
        verdicts = tuple(dict.fromkeys(said(judgement) for judgement in judgements))
        history = self._domains.setdefault(domain, _History())
        history.repeated.append(len(verdicts) > 1)
        if len(verdicts) < 2:
            return ()
        history.examples.append(Disagreement(trajectory_id, verdicts))
        found, count = sum(history.repeated), len(history.repeated)
        if ran_code and (found < LEAST_WITH_CODE or found < SHARE_WITH_CODE * count):
            return ()
        return tuple(history.examples)

    def lift(self, domain: str) -> None:
        self._domains.pop(domain, None)
