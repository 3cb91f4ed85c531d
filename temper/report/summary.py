"""The summary of a run: pure, from its messages.

Invariant: every booked slot and every sampled token is counted once, under what became of it; a rate is never given
without the counts it is made of.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from shared.contracts import Evaluation, GroupFate, Notice, Step
from temper.audit.lineage import surviving

_Z95 = 1.959964
"""Two-sided 95 % of the normal distribution."""


class Rate(BaseModel):
    """`passed` of `count`; `low` and `high` bound the true rate with 95 % (Wilson's score interval, 1927)."""

    model_config = ConfigDict(frozen=True)

    passed: int
    count: int
    rate: float | None
    low: float | None
    high: float | None
    mean_reward: float | None = None
    faulted: int = 0
    """Attempts that could not be judged for a reason of ours; not in `count`."""


class Slots(BaseModel):
    """Slots by fate. `dropped` holds every cause that is neither staleness nor a fault."""

    model_config = ConfigDict(frozen=True)

    trained: int = 0
    stale: int = 0
    dropped: int = 0
    faulted: int = 0
    by_fate: dict[str, int] = {}


class StageSummary(BaseModel):
    model_config = ConfigDict(frozen=True)

    index: int
    kind: str
    steps: int
    slots: Slots
    domains: dict[str, Rate]
    """Attempts that counted in training, by domain."""
    tokens: dict[str, int]
    """Sampled tokens by fate."""
    prompt_tokens: int
    wall_seconds: float
    """Of its steps, waiting included."""
    seconds: dict[str, float] = {}
    """What the learner spent them on: wait, compute, checkpoint, publish, and their total."""
    effective_throughput: float
    """Trained trajectories per second and accelerator."""
    guard: dict[str, int] = {}
    """Steps by what the guard did, where it did anything."""
    notes: tuple[str, ...] = ()
    """What its steps say to a person: decisions of the guard, verifiers that contradict themselves."""


class EvaluationSummary(BaseModel):
    model_config = ConfigDict(frozen=True)

    name: str
    stage_index: int
    step: int
    policy_versions: tuple[int, int]
    domains: dict[str, Rate]
    overall: Rate
    wall_seconds: float


class Summary(BaseModel):
    model_config = ConfigDict(frozen=True)

    run_id: str
    steps: int
    stages: tuple[StageSummary, ...]
    evaluations: tuple[EvaluationSummary, ...]
    slots: Slots
    tokens: dict[str, int]
    prompt_tokens: int
    trained_trajectories: int
    effective_throughput: float
    """Valid trajectories (verified, fresh, with signal, trained) per accelerator-second: those of `rl` stages over
    the seconds of these stages. A machine without an accelerator counts as one."""
    accelerators: int
    wall_seconds: float
    """Of this start of the run by `temper up`; of one whose services were started one by one, from the beginning of
    its first step or evaluation to the end of its last."""
    held: dict[str, str] = {}
    """Domains that are held back at its end, and why."""
    notes: tuple[str, ...] = ()
    """What its evaluations say to a person, each once: domains with too few different held-out instances."""


def wilson(passed: int, count: int) -> tuple[float, float] | None:
    """95 % bounds of a rate; None of nothing."""
    if count == 0:
        return None
    share, z2 = passed / count, _Z95**2
    middle = (share + z2 / (2 * count)) / (1 + z2 / count)
    half = _Z95 / (1 + z2 / count) * math.sqrt(share * (1 - share) / count + z2 / (4 * count**2))
    return max(0.0, middle - half), min(1.0, middle + half)


def rate(passed: int, count: int, mean_reward: float | None = None, faulted: int = 0) -> Rate:
    bounds = wilson(passed, count)
    return Rate(
        passed=passed,
        count=count,
        rate=None if bounds is None else passed / count,
        low=None if bounds is None else bounds[0],
        high=None if bounds is None else bounds[1],
        mean_reward=mean_reward,
        faulted=faulted,
    )


def build_summary(
    run_id: str,
    steps: Iterable[Step],
    evaluations: Iterable[Evaluation],
    notices: Iterable[Notice] = (),
    *,
    held: Mapping[str, str] | None = None,
    wall_seconds: float,
    accelerators: int = 1,
) -> Summary:
    """From every step and notice in log order (lineages that a restart gave up are left out) and every evaluation."""
    lineage, evaluations = surviving(steps), tuple(evaluations)
    late = _unbooked(lineage, notices)
    indices = sorted({step.stage_index for step in lineage} | late.keys())
    stages = tuple(
        _stage(index, [s for s in lineage if s.stage_index == index], late.get(index, []), accelerators)
        for index in indices
    )
    rl = [stage for stage in stages if stage.kind == "rl"]
    return Summary(
        run_id=run_id,
        steps=len(lineage),
        stages=stages,
        evaluations=_evaluations(evaluations),
        slots=_slots(Counter(_merged(stage.slots.by_fate for stage in stages))),
        tokens=_merged(stage.tokens for stage in stages),
        prompt_tokens=sum(stage.prompt_tokens for stage in stages),
        trained_trajectories=sum(stage.slots.trained for stage in stages),
        effective_throughput=_per_second(
            sum(stage.slots.trained for stage in rl), sum(stage.wall_seconds for stage in rl), accelerators
        ),
        accelerators=accelerators,
        wall_seconds=round(wall_seconds, 3),
        held=dict(held or {}),
        notes=tuple(dict.fromkeys(note for evaluation in evaluations for note in evaluation.notes)),
    )


def write_summary(summary: Summary, path: Path) -> None:
    """Replaces `path` as a whole: a reader sees the old file or the new one."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(summary.model_dump(mode="json"), indent=2) + "\n", encoding="utf-8")
    partial.replace(path)


def _stage(index: int, steps: Sequence[Step], late: Sequence[GroupFate], accelerators: int) -> StageSummary:
    fates: Counter[str] = Counter(fate for step in steps for group in step.groups for fate in group.fates)
    fates.update(fate for group in late for fate in group.fates)
    seconds = sum(step.seconds.get("total", 0.0) for step in steps)
    return StageSummary(
        index=index,
        kind=steps[0].stage if steps else "",
        steps=sum(step.stage_step > 0 for step in steps),
        slots=_slots(fates),
        domains=_training_rates(steps),
        tokens=_merged(step.tokens for step in steps),
        prompt_tokens=sum(step.prompt_tokens for step in steps),
        wall_seconds=round(seconds, 3),
        seconds=_spent(steps),
        effective_throughput=_per_second(fates["trained"], seconds, accelerators),
        guard=dict(sorted(Counter(s.action for s in steps if s.action != "continue").items())),
        notes=tuple(note for step in steps for note in step.notes),
    )


def _spent(steps: Sequence[Step]) -> dict[str, float]:
    spent: Counter[str] = Counter()
    for step in steps:
        spent.update(step.seconds)
    return {name: round(value, 3) for name, value in sorted(spent.items())}


def _training_rates(steps: Sequence[Step]) -> dict[str, Rate]:
    rows: dict[str, list[tuple[float, int, int]]] = {}
    for step in steps:
        for name, reward in step.rewards.items():
            rows.setdefault(name, []).append((reward.mean * reward.count, reward.passed, reward.count))
    out = {}
    for name, found in sorted(rows.items()):
        total, passed, count = (sum(column) for column in zip(*found, strict=True))
        out[name] = rate(passed, count, total / count if count else None)
    return out


def _evaluations(evaluations: Iterable[Evaluation]) -> tuple[EvaluationSummary, ...]:
    by_name = {evaluation.name: evaluation for evaluation in evaluations}
    return tuple(
        EvaluationSummary(
            name=e.name,
            stage_index=e.stage_index,
            step=e.step,
            policy_versions=(e.first_version, e.last_version),
            domains={
                name: rate(d.passed, d.count, d.mean_reward, d.faulted)
                for name, d in sorted(e.domains.items())
            },
            overall=rate(
                sum(d.passed for d in e.domains.values()),
                sum(d.count for d in e.domains.values()),
                faulted=sum(d.faulted for d in e.domains.values()),
            ),
            wall_seconds=round(e.seconds, 3),
        )
        for e in sorted(by_name.values(), key=lambda e: (e.step, e.created_ms))
    )


def _unbooked(lineage: Sequence[Step], notices: Iterable[Notice]) -> dict[int, list[GroupFate]]:
    """Groups that a notice resolved after the last step: no step repeats them. By stage, from the group's id."""
    booked = {group.group_id for step in lineage for group in step.groups}
    late = {g.group_id: g for n in notices for g in n.groups if g.group_id not in booked}
    out: dict[int, list[GroupFate]] = {}
    for group in late.values():
        head = group.group_id.split("-", 1)[0]
        out.setdefault(int(head) if head.isdecimal() else 0, []).append(group)
    return out


def _slots(fates: Counter[str]) -> Slots:
    named = {name: fates[name] for name in ("trained", "stale", "faulted")}
    return Slots(**named, dropped=fates.total() - sum(named.values()), by_fate=dict(sorted(fates.items())))


def _merged(tables: Iterable[dict[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for table in tables:
        total.update(table)
    return dict(sorted(total.items()))


def _per_second(count: int, seconds: float, accelerators: int) -> float:
    return round(count / (seconds * accelerators), 6) if seconds > 0 else 0.0
