"""Messages for the learner's tests, valid unless a field is changed on purpose."""

from __future__ import annotations

from typing import Any

import numpy as np

from shared.contracts import (
    DomainRef,
    Reward,
    RoleSpan,
    Sampling,
    Sequence,
    Slot,
    Trajectory,
    VersionSpan,
)

RUN = "run"


def sequence(
    prompt: list[int], completion: list[int], logprobs: list[float] | None = None, version: int = 0
) -> Sequence:
    n, m = len(prompt), len(completion)
    values = [-1.0] * m if logprobs is None else logprobs
    spans = [VersionSpan(length=n, version=-1)] if n else []
    roles = [RoleSpan(length=n, role="user")] if n else []
    if m:
        spans.append(VersionSpan(length=m, version=version))
        roles.append(RoleSpan(length=m, role="assistant"))
    return Sequence(
        token_ids=np.array([*prompt, *completion]),
        loss_mask=np.array([0] * n + [1] * m),
        logprobs=np.array([0.0] * n + values),
        version_spans=tuple(spans),
        role_spans=tuple(roles),
    )


def trajectory(
    group: str = "0-rl-0000000",
    sample: int = 0,
    *,
    name: str = "",
    size: int = 2,
    version: int = 0,
    sequences: tuple[Sequence, ...] | None = None,
    **changes: Any,
) -> Trajectory:
    fields: dict[str, Any] = {
        "trajectory_id": name or f"{group}/{sample}/1",
        "slot": Slot(run_id=RUN, group_id=group, sample_index=sample),
        "attempt": 1,
        "stage": "rl",
        "stage_index": 0,
        "purpose": "train",
        "workload": "single_turn",
        "priority": "normal",
        "domain": DomainRef(name="sums", version=1, seed=1),
        "sampling": Sampling(samples=size, group_size=size, max_tokens=16),
        "sampling_mode": "sampled",
        "sequences": sequences or (sequence([1, 2, 3], [4 + sample % 4, 5], version=version),),
        "stop_reason": "stop",
        "first_version": version,
        "last_version": version,
    }
    return Trajectory(**{**fields, **changes})


def demonstration(group: str, **changes: Any) -> Trajectory:
    return trajectory(
        group,
        0,
        size=1,
        stage="sft",
        sampling_mode="demonstration",
        stop_reason="demonstration",
        sequences=(sequence([1, 2, 3], [4, 5, 6, 7, 8, 9], [0.0] * 6, version=-1),),
        **changes,
    )


def reward(of: Trajectory, value: float | None = 1.0, **changes: Any) -> Reward:
    verdict = "unverifiable" if value is None else {0.0: "failed", 1.0: "passed"}.get(value, "partial")
    fields: dict[str, Any] = {
        "trajectory_id": of.trajectory_id,
        "slot": of.slot,
        "stage": of.stage,
        "stage_index": of.stage_index,
        "purpose": of.purpose,
        "domain": of.domain.name,
        "domain_version": 1,
        "verdict": verdict,
        "reward": value,
    }
    return Reward(**{**fields, **changes})
