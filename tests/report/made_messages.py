"""Steps and evaluations of a run that learns, for tests of the report."""

from __future__ import annotations

from shared.contracts import DomainResult, DomainReward, Evaluation, Fate, GroupFate, Step

RUN = "demo"


def group(number: int, *fates: Fate, stage: int = 1) -> GroupFate:
    return GroupFate(
        group_id=f"{stage}-rl-{number:07d}",
        domain="arithmetic",
        samples=tuple(range(len(fates))),
        fates=fates,
    )


def rl_step(number: int, stage_step: int, *groups: GroupFate, mean: float = 0.5, passed: int = 4) -> Step:
    trained = sum(fate == "trained" for g in groups for fate in g.fates)
    return Step(
        run_id=RUN, step=number, stage="rl", stage_index=1, stage_step=stage_step, policy_version=number,
        groups=groups, rewards={"arithmetic": DomainReward(mean=mean, passed=passed, count=8)},
        tokens={"trained": 10 * trained, "stale": 3}, prompt_tokens=20, seconds={"total": 2.0, "wait": 1.0},
        trained_trajectories=trained, loss=float(number),
    )  # fmt: skip


def sft_step(number: int) -> Step:
    return Step(
        run_id=RUN, step=number, stage="sft", stage_index=0, stage_step=number, policy_version=number,
        groups=(group(number, "trained", stage=0),), tokens={"trained": 5}, seconds={"total": 1.0},
        trained_trajectories=1,
    )  # fmt: skip


def evaluation(name: str, step: int, **passed: int) -> Evaluation:
    return Evaluation(
        run_id=RUN, name=name, stage_index=0, step=step, first_version=step, last_version=step, seconds=1.5,
        domains={n: DomainResult(passed=p, count=16, faulted=1, mean_reward=p / 16) for n, p in passed.items()},
    )  # fmt: skip
