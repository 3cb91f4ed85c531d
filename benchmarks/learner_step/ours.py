"""Our side: `python -m benchmarks.learner_step.ours SPEC.json`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.learner_step.serve import Line
from benchmarks.learner_step.workloads import FIRST_ID
from services.learner.intake.attempts import Terms
from services.learner.intake.groups import JudgedGroup, judge
from services.learner.intake.join import FilledSlot
from services.learner.model import PolicyModel, load_policy
from services.learner.objectives.presets import Objective, preset
from services.learner.optimizer import make_optimizer
from services.learner.pairing import batch_of
from services.learner.step import Step
from shared.contracts import DomainRef, Reward, RoleSpan, Sampling, Sequence, Slot, Trajectory, VersionSpan
from shared.settings import LearnerSettings, ModelSettings

STAGES = {"grpo": "rl", "sft": "sft", "dpo": "preference"}


def objective_of(kind: str, kl: float) -> Objective:
    """What TRL does by default: the ratio of a first step is 1, because it divides by what it has just computed."""
    if kind == "grpo":
        return preset("grpo", kl_coefficient=kl, old_logprobs="recompute", advantage_epsilon=1e-4)
    return preset("sft") if kind == "sft" else preset("dpo", beta=kl)


def _sequence(prompt: list[int], answer: list[int]) -> Sequence:
    n, m = len(prompt), len(answer)
    return Sequence(
        token_ids=np.array([*prompt, *answer]),
        loss_mask=np.array([0] * n + [1] * m),
        logprobs=np.array([0.0] * n + [-1.0] * m),
        version_spans=(VersionSpan(length=n, version=-1), VersionSpan(length=m, version=0)),
        role_spans=(RoleSpan(length=n, role="user"), RoleSpan(length=m, role="assistant")),
    )


def judged(spec: dict[str, Any], policy: PolicyModel, objective: Objective) -> list[JudgedGroup]:
    kind = spec["kind"]
    terms = Terms(objective, policy.vocabulary, policy.max_tokens, version=0, max_lag=1, data=kind != "grpo")
    out = []
    for number, group in enumerate(spec["groups"]):
        name, size, slots = f"0-{STAGES[kind]}-{number:07d}", len(group["answers"]), {}
        for index, answer in enumerate(group["answers"]):
            slot = Slot(run_id="bench", group_id=name, sample_index=index)
            made = Trajectory(
                trajectory_id=f"{name}/{index}/1",
                slot=slot,
                attempt=1,
                stage=STAGES[kind],
                stage_index=0,
                purpose="train",
                workload="single_turn",
                priority="normal",
                domain=DomainRef(name="bench", version=1, seed=1),
                sampling=Sampling(samples=size, group_size=size, max_tokens=max(16, len(answer))),
                sampling_mode="sampled" if kind == "grpo" else "demonstration",
                sequences=(_sequence(group["prompt"], answer),),
                stop_reason="stop" if kind == "grpo" else "demonstration",
                first_version=0,
                last_version=0,
            )
            value = group["rewards"][index] if kind == "grpo" else float(1 - index)
            reward = Reward(
                trajectory_id=made.trajectory_id,
                slot=slot,
                stage=STAGES[kind],
                stage_index=0,
                purpose="train",
                domain="bench",
                domain_version=1,
                verdict="passed" if value else "failed",
                reward=value,
            )
            slots[index] = FilledSlot(made, reward, (), "")
        out.append(judge(name, slots, terms))
    return out


def main(path: str) -> None:
    line, spec = Line(), json.loads(Path(path).read_text())
    torch.set_num_threads(spec["threads"])
    torch.manual_seed(0)
    learner = LearnerSettings(
        device="cpu",
        threads=spec["threads"],
        micro_batch_tokens=spec["micro_batch_tokens"],
        activation_checkpointing=spec["checkpointing"],
    )
    policy = load_policy(ModelSettings(path=spec["model"]), learner)
    if spec["layers"]:
        policy.body.layers = policy.body.layers[: spec["layers"]]
        policy.model.config.num_hidden_layers = spec["layers"]
    objective = objective_of(spec["kind"], spec["kl"])
    groups = judged(spec, policy, objective)
    step = Step(
        policy,
        make_optimizer(policy, learner),
        micro_batch_tokens=learner.micro_batch_tokens,
        max_gradient_norm=learner.max_gradient_norm,
        reference=policy.frozen() if objective.needs_reference else None,
    )
    if spec["warm"]:
        few = {**spec, "groups": [{**spec["groups"][0], "answers": [[FIRST_ID] * 8]}]}
        batch = batch_of(judged(few, policy, objective), objective, learner.micro_batch_tokens)
        step.take(batch, objective, spec["learning_rate"], objective.kl_coefficient)
    line.say(ready=True)
    while line.asked():
        line.begin()
        batch = batch_of(groups, objective, learner.micro_batch_tokens, policy.packs, policy.width)
        metrics = step.take(batch, objective, spec["learning_rate"], objective.kl_coefficient)
        line.end(metrics.gradient_norm)


if __name__ == "__main__":
    main(sys.argv[1])
