"""What a check concludes about one attempt.

Invariant (5 of the design): a verdict comes first and decides whether there is a number; a fault and an
`unverifiable` carry none, everything else carries a finite one in [0, 1].
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import get_args

from shared.contracts.reward import FAULTS, Verdict

_VERDICTS = frozenset(get_args(Verdict))
_UNPAID = FAULTS | {"unverifiable"}


@dataclass(frozen=True, slots=True)
class Attempt:
    """What the policy left behind: the text of its last turn, and named artifacts (references)."""

    final_answer: str
    artifacts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict, its reward in [0, 1] (None where the verdict is unpaid), and the reason in words.

    `components` are named parts of the reward, for tables only. Raises `ValueError` where verdict and reward
    contradict each other, so that a broken domain is a fault and never a number.
    """

    verdict: Verdict
    reward: float | None
    reason: str = ""
    components: Mapping[str, float] = field(default_factory=dict)
    flags: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.verdict not in _VERDICTS:
            raise ValueError(f"verdict is {self.verdict!r}: it must be one of {', '.join(sorted(_VERDICTS))}")
        if not isinstance(self.reason, str) or not all(isinstance(flag, str) for flag in self.flags):
            raise ValueError(f"reason {self.reason!r} and flags {self.flags!r} must be text")
        for name, value in self.components.items():
            if not isinstance(value, int | float) or not math.isfinite(value):
                raise ValueError(f"component {name!r} is {value!r}: it must be a finite number")
        if self.verdict in _UNPAID:
            if self.reward is not None:
                raise ValueError(f"verdict {self.verdict!r} carries reward {self.reward}: it must carry none")
        elif self.reward is None or not (math.isfinite(self.reward) and 0.0 <= self.reward <= 1.0):
            raise ValueError(f"verdict {self.verdict!r} carries reward {self.reward}: it must be in [0, 1]")

    @classmethod
    def passed(cls, reason: str = "") -> Judgement:
        return cls("passed", 1.0, reason)

    @classmethod
    def failed(cls, reason: str) -> Judgement:
        return cls("failed", 0.0, reason)

    @classmethod
    def partial(cls, reward: float, reason: str, components: Mapping[str, float] | None = None) -> Judgement:
        return cls("partial", reward, reason, components or {})

    @classmethod
    def unverifiable(cls, reason: str) -> Judgement:
        """Nobody can tell: no reward, and the slot is not trained on."""
        return cls("unverifiable", None, reason)

    def flagged(self, flags: Iterable[str]) -> Judgement:
        """The same with `flags` beside its own: each once, in order, whoever found them first."""
        return replace(self, flags=tuple(sorted({*self.flags, *map(str, flags)})))
