"""Evaluations on held-out seeds: a pure state machine, clock passed in.

Invariant: an evaluation is complete exactly when every one of its instances has one verdict, or was given up
after `max_attempts` and is counted as a fault; faults are in no pass rate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from services.scheduler.held_out import HeldOut
from services.scheduler.seeds import held_out_seed
from shared.contracts import DomainResult, Evaluation, Reward
from shared.telemetry.text import one_line

_MOST_SAID = 400
"""Characters of a fault: it stands in one line of a terminal, and its own last words are at its end."""


@dataclass(frozen=True, slots=True)
class EvaluationTask:
    group_id: str
    domain: str
    seed: int
    attempt: int


@dataclass
class RunningEvaluation:
    """One evaluation in progress."""

    name: str
    stage_index: int
    step: int
    min_version: int
    held_out: Mapping[str, HeldOut]
    """By domain: what is asked of it."""
    started_s: float
    deadline_s: float
    max_attempts: int
    verdicts: dict[str, Reward] = field(default_factory=dict)
    _attempts: dict[str, int] = field(default_factory=dict)
    _sent_s: dict[str, float] = field(default_factory=dict)
    _given_up: set[str] = field(default_factory=set)
    groups: dict[str, tuple[str, int]] = field(init=False)
    """Group id → (domain, counter)."""

    def __post_init__(self) -> None:
        self.groups = {
            self._id(domain, k): (domain, k)
            for domain, asked in self.held_out.items()
            for k in asked.counters
        }

    def due(self, now_s: float) -> list[EvaluationTask]:
        """What to send now: first attempts, and later ones of what is overdue."""
        out = []
        for group, (domain, counter) in self.groups.items():
            if group in self.verdicts or group in self._given_up:
                continue
            if group in self._sent_s and now_s - self._sent_s[group] < self.deadline_s:
                continue
            attempt = self._attempts.get(group, 0) + 1
            if attempt > self.max_attempts:
                self._given_up.add(group)
                continue
            self.observe_scheduled(group, attempt, now_s)
            out.append(EvaluationTask(group, domain, held_out_seed(counter), attempt))
        return out

    def observe_scheduled(self, group: str, attempt: int, now_s: float) -> None:
        self._attempts[group] = max(attempt, self._attempts.get(group, 0))
        self._sent_s[group] = now_s

    def observe_reward(self, reward: Reward) -> bool:
        """True when it belongs to this evaluation. The first verdict counts; later ones change nothing."""
        group = reward.slot.group_id
        if group not in self.groups:
            return False
        self.verdicts.setdefault(group, reward)
        return True

    @property
    def complete(self) -> bool:
        return len(self.verdicts.keys() | self._given_up) >= len(self.groups)

    @property
    def waiting(self) -> int:
        return len(self.groups) - len(self.verdicts.keys() | self._given_up)

    def result(self, run_id: str, now_s: float) -> Evaluation:
        versions = [r.policy_version for r in self.verdicts.values() if r.policy_version >= 0]
        return Evaluation(
            run_id=run_id,
            name=self.name,
            stage_index=self.stage_index,
            step=self.step,
            first_version=min(versions, default=-1),
            last_version=max(versions, default=-1),
            domains={domain: self._domain_result(domain) for domain in self.held_out},
            notes=tuple(filter(None, (asked.shortage(name) for name, asked in self.held_out.items()))),
            seconds=now_s - self.started_s,
            created_ms=int(now_s * 1000),
        )

    def _domain_result(self, domain: str) -> DomainResult:
        rewards = [self.verdicts.get(self._id(domain, k)) for k in self.held_out[domain].counters]
        judged = [r for r in rewards if r is not None and r.reward is not None]
        return DomainResult(
            passed=sum(r.verdict == "passed" for r in judged),
            count=len(judged),
            faulted=len(rewards) - len(judged),
            mean_reward=sum(r.reward or 0.0 for r in judged) / len(judged) if judged else 0.0,
            fault=next(
                (one_line(r.reason)[:_MOST_SAID] for r in rewards if r is not None and r.is_fault), ""
            ),
        )

    def _id(self, domain: str, counter: int) -> str:
        return f"eval-{self.name}-{domain}-{counter:05d}"
