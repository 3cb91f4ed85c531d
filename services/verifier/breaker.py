"""A breaker by domain: when most of its attempts or checks end in faults of ours, something is broken and somebody
must know.

Invariant: a domain trips once when at least `share` of its last `window` checks (and no fewer than `least`) were
faults, and not again before it was lifted. Pure and of bounded memory.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Tripped:
    """What the breaker saw: `faults` of the last `checks`, the newest of them in words."""

    domain: str
    faults: int
    checks: int
    latest: tuple[str, ...]


@dataclass(slots=True)
class _History:
    outcomes: deque[bool]
    """True is a fault; the last `window` checks."""
    faults: deque[str] = field(default_factory=lambda: deque(maxlen=3))
    tripped: bool = False


class Breaker:
    """Tell it of every check; it says when a domain has tripped."""

    def __init__(self, share: float, least: int, window: int) -> None:
        self._share = share
        self._least = least
        self._window = window
        self._domains: dict[str, _History] = {}

    def observe(self, domain: str, fault: str = "") -> Tripped | None:
        """One finished check, or an attempt that could not be made; `fault` in words where it was one. What it returns is returned once."""
        history = self._domains.setdefault(domain, _History(deque(maxlen=self._window)))
        history.outcomes.append(bool(fault))
        if fault:
            history.faults.append(fault)
        faults, checks = sum(history.outcomes), len(history.outcomes)
        if history.tripped or checks < self._least or faults < self._share * checks:
            return None
        history.tripped = True
        return Tripped(domain, faults, checks, tuple(history.faults))

    def lift(self, domain: str) -> None:
        """Begin anew: somebody says that it is mended."""
        self._domains.pop(domain, None)
