"""Who may hold a session, and until when.

Invariant: a lease that is neither renewed nor given back in time is over exactly once; a number given back, or over,
is never held again. Pure: the clock is passed in as a number of seconds that does not go backwards.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from shared.errors import ConfigError

LeaseId = int


@dataclass(slots=True)
class Leases:
    """`grant`, `renew`, `give_back`, and `over`: those whose time has come."""

    _next: LeaseId = 0
    _until: dict[LeaseId, float] = field(default_factory=dict)
    _order: list[tuple[float, LeaseId]] = field(default_factory=list)

    def grant(self, now: float, seconds: float) -> LeaseId:
        """Raises `ConfigError` for a time that is not positive."""
        if not seconds > 0:
            raise ConfigError(f"a lease of {seconds} s: it must be positive")
        lease, self._next = self._next, self._next + 1
        self._set(lease, now + seconds)
        return lease

    def renew(self, lease: LeaseId, now: float, seconds: float) -> bool:
        """False when it is over already, or was given back. A lease is never made shorter."""
        until = self._until.get(lease)
        if until is None or until <= now:
            return False
        if now + seconds > until:
            self._set(lease, now + seconds)
        return True

    def give_back(self, lease: LeaseId) -> bool:
        """False when it was over, or given back before."""
        return self._until.pop(lease, None) is not None

    def over(self, now: float) -> list[LeaseId]:
        """Those that have ended by now, each told once, in the order of their ends."""
        ended = []
        while self._order and self._order[0][0] <= now:
            until, lease = heapq.heappop(self._order)
            # A renewed or returned lease leaves its older entry behind in the heap.
            if self._until.get(lease) == until:
                del self._until[lease]
                ended.append(lease)
        return ended

    def next_end(self) -> float | None:
        """When to look again; None while nothing is held."""
        while self._order and self._until.get(self._order[0][1]) != self._order[0][0]:
            heapq.heappop(self._order)
        return self._order[0][0] if self._order else None

    def __len__(self) -> int:
        return len(self._until)

    def _set(self, lease: LeaseId, until: float) -> None:
        self._until[lease] = until
        heapq.heappush(self._order, (until, lease))
