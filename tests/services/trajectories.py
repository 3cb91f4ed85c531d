"""Trajectories as a rollout would send them, for the verifier's tests."""

from __future__ import annotations

import time
import uuid
from typing import Any

from shared.contracts import RoleSpan, Sampling, Sequence, Slot, Trajectory, VersionSpan
from shared.domains.base import Instance

SEQUENCE = Sequence(
    token_ids=[1, 2, 3],
    loss_mask=[0, 1, 1],
    logprobs=[0.0, -0.5, -0.25],
    version_spans=(VersionSpan(length=1, version=-1), VersionSpan(length=2, version=4)),
    role_spans=(RoleSpan(length=1, role="user"), RoleSpan(length=2, role="assistant")),
)


def trajectory(run_id: str, instance: Instance, answer: str, **changes: Any) -> Trajectory:
    """An attempt at `instance`; `changes` replace fields, `group` and `sample` name its slot."""
    group, sample = changes.pop("group", "0-rl-0000001"), changes.pop("sample", 0)
    body: dict[str, Any] = {
        "trajectory_id": uuid.uuid4().hex,
        "slot": Slot(run_id=run_id, group_id=group, sample_index=sample),
        "attempt": 1,
        "stage": "rl",
        "stage_index": 0,
        "purpose": "train",
        "workload": "single_turn",
        "priority": "normal",
        "domain": instance.reference(),
        "sampling": Sampling(samples=2, group_size=2),
        "sampling_mode": "sampled",
        "sequences": (SEQUENCE,),
        "stop_reason": "stop",
        "final_answer": answer,
        "first_version": 4,
        "last_version": 4,
        "created_ms": int(time.time() * 1000),
    }
    return Trajectory(**{**body, **changes})
