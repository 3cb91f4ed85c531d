"""The auditor: a sampled share is checked again, and every judged attempt is looked at beside the others.

Invariant: what the auditor finds never makes a verdict better. Checks that disagree leave an attempt unpaid; a
further check that fails for a reason of ours changes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

import structlog

from services.verifier.auditor.duplicates import Duplicates
from services.verifier.auditor.flags import AuditFlag
from services.verifier.auditor.jumps import PassRateJumps
from services.verifier.auditor.length import LengthAgainstReward
from services.verifier.auditor.repetition import Repetitions, said
from services.verifier.auditor.rules import FlagRules
from services.verifier.auditor.sampling import is_chosen
from services.verifier.findings import Finding, flagged, flaky
from shared.contracts import Trajectory
from shared.settings import AuditorSettings
from shared.verification.checks import Allowance, Checks
from shared.verification.children import Checked
from shared.verification.judgement import Attempt, Judgement


@dataclass(frozen=True, slots=True)
class Looked:
    """A checked attempt after the further checks, and the finding that they led to."""

    checked: Checked
    finding: Finding | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """What shows across attempts: flags for the reward, and the finding that a rule made of them."""

    stream_flags: tuple[str, ...]
    finding: Finding | None = None


class Auditor:
    """`checks` are the verifier's own; `apart` checks with children and jails of its own."""

    def __init__(self, settings: AuditorSettings, checks: Checks, apart: Checks) -> None:
        self._settings = settings
        self._checks = checks
        self._apart = apart
        self._log = structlog.get_logger()
        self._repetitions = Repetitions()
        self._duplicates = Duplicates()
        self._length = LengthAgainstReward()
        self._jumps = PassRateJumps()
        self._rules = FlagRules(settings.rules)
        self._flags: Counter[str] = Counter()
        self._counts: Counter[str] = Counter()

    async def look_again(
        self, trajectory: Trajectory, attempt: Attempt, checked: Checked, allowance: Callable[[], Allowance]
    ) -> Looked:
        """The attempt once more where it was chosen: independently, and some times over."""
        name, settings = trajectory.trajectory_id, self._settings
        plan: list[tuple[Checks, bool]] = []
        if is_chosen("audit", name, settings.share):
            plan.append((self._apart, True))
            self._counts["audited"] += 1
        if is_chosen("repeat", name, settings.repeat_share):
            plan += [(self._checks, False)] * settings.repeats
            self._counts["repeated"] += 1
        judgements = [checked.judgement]
        for checks, fresh in plan:
            try:
                found = await checks.check(trajectory.domain, attempt, allowance(), fresh=fresh)
            except Exception as error:  # noqa: BLE001 - there is a verdict already: a fault of a second look is told
                self._counts["audit_faults"] += 1
                self._log.warning("audit.fault", trajectory_id=name, error=str(error))
            else:
                judgements.append(found.judgement)
        if len(judgements) == 1:
            return Looked(checked)
        domain = trajectory.domain.name
        examples = self._repetitions.observe(domain, name, judgements, ran_code=checked.ran_code)
        finding = flaky(domain, examples) if examples else None
        verdicts = list(dict.fromkeys(said(judgement) for judgement in judgements))
        if len(verdicts) < 2:
            return Looked(checked, finding)
        self._counts["disagreed"] += 1
        self._log.error("audit.disagreement", trajectory_id=name, domain=domain, verdicts=verdicts)
        return Looked(replace(checked, judgement=_unpaid(judgements, verdicts)), finding)

    def observe(self, trajectory: Trajectory, judgement: Judgement) -> Seen:
        """One judged attempt, after `look_again`."""
        domain, flags = trajectory.domain.name, []
        if judgement.reward is not None:
            if trajectory.sampling_mode == "sampled" and self._duplicates.observe(
                trajectory.slot.group_id, trajectory.trajectory_id, trajectory.final_answer
            ):
                flags.append(AuditFlag.DUPLICATE_ANSWERS)
            if self._length.observe(domain, trajectory.sampled_tokens(), judgement.reward):
                flags.append(AuditFlag.REWARD_FOLLOWS_LENGTH)
            if self._jumps.observe(
                domain, trajectory.stage_index, trajectory.purpose, judgement.verdict == "passed"
            ):
                flags.append(AuditFlag.PASS_RATE_JUMP)
        stream = tuple(sorted(flags))
        self._flags.update((*judgement.flags, *stream))
        broken = self._rules.observe(domain, trajectory.trajectory_id, judgement.flags, stream)
        return Seen(stream, None if broken is None else flagged(broken))

    def lift(self, domain: str) -> None:
        """Begin anew with a domain that somebody has mended."""
        for part in (self._repetitions, self._length, self._jumps, self._rules):
            part.lift(domain)

    def gauges(self) -> dict[str, float]:
        """Totals since the start: `flag.<name>`, `audited`, `repeated`, `disagreed`, `audit_faults`."""
        return {
            **{f"flag.{name}": float(count) for name, count in self._flags.items()},
            **{name: float(count) for name, count in self._counts.items()},
        }


def _unpaid(judgements: list[Judgement], verdicts: list[str]) -> Judgement:
    """Nobody can tell which check is right."""
    reason = f"checks of this attempt disagree: {', '.join(verdicts)}"
    flags = {flag for judgement in judgements for flag in judgement.flags}
    return Judgement.unverifiable(reason).flagged({*flags, AuditFlag.CHECKS_DISAGREE})
