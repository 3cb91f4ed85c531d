"""The verifier, and the auditor of its verdicts."""

from __future__ import annotations

from pydantic import Field, model_validator

from shared.settings.section import Section


class VerifierSettings(Section):
    processes: int = Field(default=1, ge=0)
    """That `temper up` starts."""
    workloads: tuple[str, ...] = ()
    """Those whose attempts are judged; empty: all."""
    concurrency: int = Field(default=32, ge=1)
    """Attempts judged at once."""
    children: int = Field(default=1, ge=1)
    """Killable child processes that run comparators."""
    check_seconds: float = Field(default=5.0, gt=0)
    """Wall limit of one check; past it the child is killed and the attempt is a fault of ours."""
    sandbox_seconds: float = Field(default=60.0, gt=0)
    """Most wall time of a check in a sandbox. A domain that declares more for it is a fault, never cut short."""
    sandbox_cpus: float = Field(default=0.0, ge=0)
    """CPUs that checks in sandboxes may occupy together; 0: all that this process may use."""
    sandbox_memory_mb: int = Field(default=0, ge=0)
    """Memory likewise, in MiB; 0: half of the machine's."""
    breaker_share: float = Field(default=2 / 3, gt=0, le=1)
    """A domain is held back when so many of its last `breaker_window` checks (at least `breaker_least`) were faults."""
    breaker_least: int = Field(default=12, ge=1)
    """Checks before which a domain is never held back for faults."""
    breaker_window: int = Field(default=48, ge=1)
    """Newest checks of a domain that are looked at."""

    @model_validator(mode="after")
    def _the_window_holds_enough(self) -> VerifierSettings:
        if self.breaker_window < self.breaker_least:
            raise ValueError(
                f"breaker_window is {self.breaker_window} and breaker_least {self.breaker_least}: "
                "the breaker could never trip; make the window at least as large"
            )
        return self


class AuditRule(Section):
    """Hold a domain back when `share` of its newest attempts (at least `least` of them) carry `flag`."""

    flag: str
    """`*`: any one flag that a detector finds in an attempt."""
    share: float = Field(default=0.5, gt=0, le=1)
    """Of its newest attempts."""
    least: int = Field(default=64, ge=1, le=256)
    """Attempts that must have been seen."""


class AuditorSettings(Section):
    share: float = Field(default=0.01, ge=0, le=1)
    """Of attempts that get a second, independent check: a child that served nobody before, a jail of its own."""
    repeat_share: float = Field(default=0.02, ge=0, le=1)
    """Of attempts that are checked `repeats` times more to find domains with two verdicts on one attempt."""
    repeats: int = Field(default=2, ge=1, le=100)
    """Further checks of such an attempt."""
    rules: tuple[AuditRule, ...] = (AuditRule(flag="*"),)
    """When flags hold a domain back. An empty list: flags are only told."""
    never_hold: tuple[str, ...] = ()
    """Domains that no finding holds back: it is logged all the same."""
