"""Runs as facts: clean ones of any shape."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field, replace

from shared.contracts import Fate, GroupFate, Notice, Step
from shared.telemetry.span_log import SpanLink, SpanRecord
from temper.audit.facts import (
    AttemptFact,
    CheckpointFact,
    DeadFact,
    PolicyFact,
    RewardFact,
    RunFacts,
    TaskFact,
)

RUN = "made"
DROPS: tuple[Fate, ...] = ("stale", "zero_signal", "faulted", "expired", "unverifiable")


@dataclass
class MadeRun:
    """Grows a clean run step by step."""

    rng: random.Random
    groups_per_step: int = 2
    group_size: int = 3
    max_lag: int = 1
    traced: bool = True
    tasks: list[TaskFact] = field(default_factory=list)
    attempts: list[AttemptFact] = field(default_factory=list)
    rewards: list[RewardFact] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    policies: list[PolicyFact] = field(default_factory=list)
    checkpoints: list[CheckpointFact] = field(default_factory=list)
    spans: list[SpanRecord] = field(default_factory=list)
    made: int = 0

    def __post_init__(self) -> None:
        self._publish(0)

    def facts(self, **more: object) -> RunFacts:
        facts = RunFacts(
            run_id=RUN, max_lag=self.max_lag, tasks=tuple(self.tasks), attempts=tuple(self.attempts),
            rewards=tuple(self.rewards), steps=tuple(self.steps), policies=tuple(self.policies),
            checkpoints=tuple(self.checkpoints), remembered={g.group_id for s in self.steps for g in s.groups}, spans=tuple(self.spans) if self.traced else None,
        )  # fmt: skip
        return replace(facts, **more)

    def step(self) -> None:
        """One step: its groups, their attempts and rewards, the checkpoint, the policy, the spans."""
        number = len(self.policies)
        step_trace = f"{10**9 + number:032x}"
        self.spans.append(
            self._span(step_trace, f"{number:016x}", "", "step", "learner", **{"temper.step": number})
        )
        groups = [
            self._group(number, SpanLink(step_trace, f"{number:016x}")) for _ in range(self.groups_per_step)
        ]
        trained = [
            t for g in groups for t, f in zip(g.trajectory_ids, g.fates, strict=True) if f == "trained"
        ]
        sizes = {attempt.trajectory_id: attempt.sampled_tokens for attempt in self.attempts}
        tokens: Counter[str] = Counter()
        for group in groups:
            for name, fate in zip(group.trajectory_ids, group.fates, strict=True):
                tokens[fate] += sizes[name]
        self.steps.append(
            Step(
                run_id=RUN,
                step=number,
                stage="rl",
                stage_index=0,
                stage_step=number,
                lineage="a",
                policy_version=number,
                groups=tuple(groups),
                loss=self.rng.random(),
                trained_trajectories=len(trained),
                trained_tokens=tokens["trained"],
                tokens=dict(tokens),
            )
        )
        self._publish(number)

    def restart_from(self, number: int) -> None:
        """The learner comes back from the checkpoint of step `number` and makes the later ones again.

        Records stay in the topics; versions that were announced are not announced again.
        """
        again = len(self.policies) - 1 - number
        old, self.policies = self.policies, self.policies[: number + 1]
        for _ in range(again):
            self.step()
        self.policies = old

    def schedule(self, attempted: bool = False) -> str:
        """A group without a fate; its id."""
        group_id = f"0-rl-{self.made:07d}"
        self.made += 1
        trace, root = f"{self.made:032x}", f"{len(self.spans) + 10**6:016x}"
        self.spans.append(
            self._span(trace, root, "", "schedule", "scheduler", **{"temper.group_id": group_id})
        )
        parent = f"00-{trace}-{root}-01"
        where = f"tasks/0/{self.made}"
        self.tasks.append(
            TaskFact(group_id, tuple(range(self.group_size)), traceparent=parent, position=where)
        )
        if attempted:
            for index in range(self.group_size):
                self._attempt(group_id, index, len(self.policies))
        return group_id

    def _group(self, number: int, step: SpanLink) -> GroupFate:
        group_id = self.schedule()
        trace, root = f"{self.made:032x}", self.tasks[-1].traceparent.split("-")[2]
        attempt = self._grow(trace, root, "attempt", "rollout", None)
        ids, fates, traces = [], [], []
        drop: Fate | None = self.rng.choice([None, None, *DROPS])
        for index in range(self.group_size):
            made = self._attempt(group_id, index, number)
            sample = self._grow(trace, attempt, "sample", "rollout", made.trajectory_id)
            verify = self._grow(trace, sample, "verify", "verifier", made.trajectory_id)
            self.spans.append(
                replace(
                    self._span(trace, f"{len(self.spans) + 10**6:016x}", verify, "train", "learner"),
                    attributes={"temper.trajectory_id": made.trajectory_id},
                    links=(step,),
                )
            )
            ids.append(made.trajectory_id)
            traces.append(f"00-{trace}-{verify}-01")
            fates.append(drop or "trained")
        return GroupFate(
            group_id=group_id, samples=tuple(range(self.group_size)), fates=tuple(fates),
            trajectory_ids=tuple(ids), traceparents=tuple(traces),
        )  # fmt: skip

    def _attempt(self, group_id: str, index: int, number: int) -> AttemptFact:
        trajectory_id = f"t{len(self.attempts)}"
        oldest = max(0, number - 1 - self.rng.randint(0, self.max_lag))
        made = AttemptFact(
            trajectory_id,
            (group_id, index),
            oldest_version=oldest,
            sampled_tokens=self.rng.randint(1, 9),
            position=f"trajectories/0/{len(self.attempts)}",
            finished=True,
        )
        self.attempts.append(made)
        passed = self.rng.random() < 0.5
        self.rewards.append(
            RewardFact(trajectory_id, made.slot, "passed" if passed else "failed", float(passed))
        )
        return made

    def _publish(self, number: int) -> None:
        key = f"checkpoints/{RUN}/{number:08d}"
        if all(checkpoint.key != key for checkpoint in self.checkpoints):
            self.checkpoints = [replace(c, pruned=("weights.safetensors",)) for c in self.checkpoints]
            self.checkpoints.append(CheckpointFact(key, number, weights_digest=f"{number:064x}"))
        self.policies.append(PolicyFact(number, number, f"{number:064x}", key))

    def _grow(self, trace: str, parent: str, name: str, service: str, trajectory: str | None) -> str:
        span_id = f"{len(self.spans) + 10**6:016x}"
        facts = {} if trajectory is None else {"temper.trajectory_id": trajectory}
        self.spans.append(self._span(trace, span_id, parent, name, service, **facts))
        return span_id

    def _span(
        self, trace: str, span_id: str, parent: str, name: str, service: str, **facts: object
    ) -> SpanRecord:
        end = self.rng.choice([1, 1, 1, None])
        return SpanRecord(trace, span_id, parent, name, service, f"{service}-0", 0, end, facts)


def made_run(seed: int, steps: int, *, restart: int | None = None, traced: bool = True) -> RunFacts:
    """A clean run: dropped groups, repeated records, work in flight, open spans and, if asked, a restart."""
    rng = random.Random(seed)
    run = MadeRun(rng, groups_per_step=rng.randint(1, 3), group_size=rng.randint(1, 3),
                  max_lag=rng.randint(0, 2), traced=traced)  # fmt: skip
    for _ in range(steps):
        run.step()
    if restart is not None:
        run.restart_from(min(restart, steps))
    run.schedule()
    run.schedule(attempted=True)
    dead = run.schedule()
    buried = run.tasks[-1].position
    noticed = run.schedule(attempted=True)
    fates: tuple[Fate, ...] = ("stale",) * run.group_size
    repeated = rng.sample(run.attempts, k=min(3, len(run.attempts)))
    run.tasks = [replace(t, finished=t.group_id in {a.slot[0] for a in run.attempts}) for t in run.tasks]
    return run.facts(
        attempts=(*run.attempts, *repeated),
        rewards=(*run.rewards, *rng.sample(run.rewards, k=min(3, len(run.rewards)))),
        steps=(*run.steps, *run.steps[-1:]),
        dead=(DeadFact("rollout", buried, dead, "ValueError", "bad task"),),
        notices=(Notice(run_id=RUN, groups=(
            GroupFate(group_id=noticed, samples=tuple(range(run.group_size)), fates=fates),)),),
    )  # fmt: skip
