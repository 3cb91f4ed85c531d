"""The record of a step: what was trained, what was not, and what it cost.

Invariant: the record's groups, tokens and rewards come from the same resolutions; its counts are those of the
slots that it lists as trained.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from services.learner.intake.attempts import oldest_version
from services.learner.intake.groups import JudgedGroup
from services.learner.intake.ledger import Ledger
from services.learner.metrics import StepMetrics
from services.learner.stages import Progress
from shared.contracts import DomainReward, GroupFate, Step
from shared.settings import StageSettings

NAMED = 5
"""Invalid attempts that a step's note names; all are in its book."""


def step_record(
    *,
    run_id: str,
    lineage: str,
    progress: Progress,
    stage: StageSettings,
    groups: list[JudgedGroup],
    metrics: StepMetrics,
    fates: tuple[GroupFate, ...],
    ledger: Ledger,
    kl_coefficient: float,
    version: int,
    seconds: Mapping[str, float],
    notes: tuple[str, ...] = (),
) -> Step:
    """`progress` counts this step in; `version` is the one that it started from."""
    tokens, prompt_tokens = ledger.take()
    notes = (*notes, *invalid_note(fates))
    trained = sum(fate == "trained" for group in fates for fate in group.fates)
    lag_mean, lag_max = staleness(groups, version)
    return Step(
        run_id=run_id,
        step=progress.step,
        stage=stage.kind,
        stage_index=progress.stage_index,
        stage_step=progress.stage_step,
        lineage=lineage,
        policy_version=progress.step,
        groups=fates,
        loss=metrics.loss,
        loss_terms={**metrics.terms, "kl_coefficient": kl_coefficient},
        kl=metrics.kl,
        entropy=metrics.entropy,
        clip_fraction=metrics.clip_fraction,
        gradient_norm=metrics.gradient_norm,
        effective_sample_size=metrics.effective_sample_size,
        learning_rate=metrics.learning_rate,
        staleness_mean=lag_mean,
        staleness_max=lag_max,
        rewards=rewards_by_domain(groups),
        tokens=tokens,
        prompt_tokens=prompt_tokens,
        seconds=dict(seconds),
        trained_trajectories=trained,
        trained_tokens=tokens.get("trained", 0),
        action="continue" if metrics.decision is None else metrics.decision.action,
        notes=notes,
        created_ms=int(time.time() * 1000),
    )


def invalid_note(fates: Iterable[GroupFate]) -> tuple[str, ...]:
    """A line that names what came in and must never be trained on; nothing where nothing did."""
    found = [
        f"{trajectory or f'{group.group_id}/{index}'}: {reason}"
        for group in fates
        for index, fate, trajectory, reason in zip(
            group.samples, group.fates, group.trajectory_ids, group.reasons, strict=False
        )
        if fate == "invalid"
    ]
    if not found:
        return ()
    more = f"; and {len(found) - NAMED} more" if len(found) > NAMED else ""
    return (f"{len(found)} invalid attempts, not trained on: {'; '.join(found[:NAMED])}{more}",)


def staleness(groups: list[JudgedGroup], version: int) -> tuple[float, int]:
    """(mean, maximum) of how many versions the oldest token of each usable attempt is behind `version`."""
    oldest = [oldest_version(slot.trajectory) for group in groups for slot in group.usable_slots()]
    lags = [version - sampled for sampled in oldest if sampled >= 0]
    return (sum(lags) / len(lags), max(lags)) if lags else (0.0, 0)


def rewards_by_domain(groups: list[JudgedGroup]) -> dict[str, DomainReward]:
    """Of every attempt in the batch that has a reward, those of groups without signal included."""
    values: dict[str, list[float]] = {}
    passed: dict[str, int] = {}
    for group in groups:
        for slot in group.usable_slots():
            if slot.reward is None or slot.reward.reward is None:
                continue
            name = slot.trajectory.domain.name
            values.setdefault(name, []).append(slot.reward.reward)
            passed[name] = passed.get(name, 0) + (slot.reward.verdict == "passed")
    return {
        name: DomainReward(mean=sum(found) / len(found), passed=passed[name], count=len(found))
        for name, found in sorted(values.items())
    }
