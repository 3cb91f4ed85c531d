"""Which policy to load, and when to give up: a pure state machine.

Invariant: the version served never goes back; intermediates that were overtaken are never loaded; two failures to
attest in a row end it, whatever versions they were of.
"""

from __future__ import annotations

from dataclasses import dataclass

from shared.contracts import Policy

MAX_ATTESTATION_FAILURES = 2


@dataclass(slots=True)
class Following:
    run_id: str
    served: int = -1
    """Newest version whose canary was reproduced."""
    newest: Policy | None = None
    """Newest announcement of the run."""
    failures: int = 0
    """Attestation failures since the last success."""
    failed_version: int = -1

    def observe(self, policy: Policy) -> None:
        """An announcement; of another run, or not newer than what is known: nothing changes."""
        known = -1 if self.newest is None else self.newest.version
        if policy.run_id == self.run_id and policy.version > max(known, self.served):
            self.newest = policy

    def due(self) -> Policy | None:
        """What to load now."""
        if self.newest is None or self.newest.version <= self.served or self.given_up:
            return None
        return self.newest

    def succeeded(self, policy: Policy) -> None:
        if policy.version <= self.served:
            raise ValueError(
                f"policy {policy.version} was loaded while {self.served} was served: never go back"
            )
        self.served = policy.version
        self.failures = 0

    def failed(self, policy: Policy) -> None:
        """It could not be attested: wrong bytes, wrong tensors, or a canary that is not reproduced."""
        self.failures += 1
        self.failed_version = policy.version

    @property
    def given_up(self) -> bool:
        return self.failures >= MAX_ATTESTATION_FAILURES
