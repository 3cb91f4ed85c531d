"""Who may use the sandboxes now: CPUs and memory that are shared by checks which declare what they need.

Invariant: what is admitted never adds up to more than the budget; the oldest that waits is passed by at most
`MAX_PASSED` younger ones that fit beside it, so small checks fill gaps and a big one is never starved. Pure: who
asks and who leaves is passed in, whom that lets in is returned.
"""

from __future__ import annotations

from dataclasses import dataclass

from shared.errors import VerificationFault

MAX_PASSED = 32
"""How often a waiting check may be overtaken. With checks of 100 ms on two cores that is under two seconds more."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What one check occupies while it runs: CPUs (fractions count) and MiB of memory."""

    cpus: float
    memory_mb: float

    def __post_init__(self) -> None:
        if not (0 < self.cpus < float("inf") and 0 < self.memory_mb < float("inf")):
            raise ValueError(f"a demand of {self.cpus} CPUs and {self.memory_mb} MiB: both must be positive")


@dataclass(slots=True)
class _Waiting:
    demand: Demand
    passed: int = 0


class Capacity:
    """The state machine. Tickets are the caller's, each in use once at a time."""

    def __init__(self, budget: Demand, max_passed: int = MAX_PASSED) -> None:
        self._budget = budget
        self._max_passed = max_passed
        self._waiting: dict[int, _Waiting] = {}
        """In the order of arrival."""
        self._running: dict[int, Demand] = {}

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def used(self) -> tuple[float, float]:
        """CPUs and MiB in use."""
        held = self._running.values()
        return sum(d.cpus for d in held), sum(d.memory_mb for d in held)

    def ask(self, ticket: int, demand: Demand) -> list[int]:
        """Joins the line; returns whom that lets in (the newcomer itself, or nobody).

        Raises `VerificationFault` for a demand that would never fit: waiting would not mend it.
        """
        assert ticket not in self._waiting and ticket not in self._running
        for what, wanted, there in (
            ("CPUs", demand.cpus, self._budget.cpus),
            ("MiB of memory", demand.memory_mb, self._budget.memory_mb),
        ):
            if wanted > there:
                raise VerificationFault(
                    f"a check needs {wanted:g} {what} and this verifier's sandboxes have {there:g}: "
                    "raise verifier.sandbox_cpus or verifier.sandbox_memory_mb, or lower the check's limits"
                )
        self._waiting[ticket] = _Waiting(demand)
        return self._admit()

    def leave(self, ticket: int) -> list[int]:
        """Its run is over, or it no longer waits; returns whom that lets in. Harmless when it is not here."""
        self._running.pop(ticket, None)
        self._waiting.pop(ticket, None)
        return self._admit()

    def _admit(self) -> list[int]:
        admitted: list[int] = []
        held_up: list[_Waiting] = []
        for ticket, entry in list(self._waiting.items()):
            if any(older.passed >= self._max_passed for older in held_up):
                break
            if self._fits(entry.demand):
                del self._waiting[ticket]
                self._running[ticket] = entry.demand
                admitted.append(ticket)
                for older in held_up:
                    older.passed += 1
            else:
                held_up.append(entry)
        return admitted

    def _fits(self, demand: Demand) -> bool:
        cpus, memory_mb = self.used
        return (
            cpus + demand.cpus <= self._budget.cpus and memory_mb + demand.memory_mb <= self._budget.memory_mb
        )
