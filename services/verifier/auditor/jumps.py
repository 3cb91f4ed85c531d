"""Pass rates that jump further than learning explains.

Invariant: the newest attempts of a domain are compared with those right before them, in two windows of fixed size.
A jump needs both a large step and one that chance does not make (two-proportion z test). Pure.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

NEWEST = 64
BEFORE = 192
LEAST_STEP = 0.4
"""Of the pass rate, within the 64 newest attempts."""
LEAST_Z = 6.0
"""Chance alone passes it in two of a thousand million comparisons of independent attempts. Attempts of one group are
not independent (eight alike count as one): the margin is for that."""


@dataclass(slots=True)
class _Windows:
    newest: deque[bool] = field(default_factory=deque)
    before: deque[bool] = field(default_factory=deque)
    passed_newest: int = 0
    passed_before: int = 0

    def add(self, passed: bool) -> None:
        self.newest.append(passed)
        self.passed_newest += passed
        if len(self.newest) > NEWEST:
            older = self.newest.popleft()
            self.passed_newest -= older
            self.before.append(older)
            self.passed_before += older
            if len(self.before) > BEFORE:
                self.passed_before -= self.before.popleft()


class PassRateJumps:
    """By domain, stage and purpose: a new stage or an evaluation starts anew."""

    def __init__(self) -> None:
        self._windows: dict[tuple[str, int, str], _Windows] = {}

    def observe(self, domain: str, stage_index: int, purpose: str, passed: bool) -> bool:
        """True while the newest 64 attempts stand out from the (at least 64) before them."""
        windows = self._windows.setdefault((domain, stage_index, purpose), _Windows())
        windows.add(passed)
        if len(windows.before) < NEWEST:
            return False
        return _stands_out(
            windows.passed_newest, len(windows.newest), windows.passed_before, len(windows.before)
        )

    def lift(self, domain: str) -> None:
        for key in [key for key in self._windows if key[0] == domain]:
            del self._windows[key]


def _stands_out(passed: int, count: int, passed_before: int, count_before: int) -> bool:
    step = passed / count - passed_before / count_before
    pooled = (passed + passed_before) / (count + count_before)
    deviation = math.sqrt(pooled * (1.0 - pooled) * (1.0 / count + 1.0 / count_before))
    return abs(step) >= LEAST_STEP and abs(step) >= LEAST_Z * deviation
