"""From a trajectory and what was found out about it to the `Reward` message.

Invariant (5 of the design): a fault of ours carries no number; a policy that ran out of tokens, turns or time is
judged by what it left, and the reason says that it was cut off. Pure: the clock's reading is passed in.
"""

from __future__ import annotations

from dataclasses import dataclass

from shared.contracts import FAULTS, Reward, Trajectory, Verdict
from shared.verification.children import Checked
from shared.verification.protocol import outward

_CUT_OFF = {
    "length": "cut off at its token limit",
    "turns": "cut off at its turn limit",
    "deadline": "cut off at its deadline",
    "tokens": "cut off at its limit of sampled tokens",
    "context": "cut off where its context was full",
    "calls": "cut off at its limit of calls",
}


@dataclass(frozen=True, slots=True)
class Signature:
    """Who says it, when, at which delivery of the trajectory."""

    worker_id: str
    verifier_version: str
    now_ms: int
    """Milliseconds since the epoch."""
    attempts: int = 1


def needs_no_reward(trajectory: Trajectory) -> bool:
    """A demonstration is imitated, whatever became of it."""
    return trajectory.sampling_mode == "demonstration"


def fault_of_rollout(trajectory: Trajectory) -> str:
    """Why there is no attempt to judge; empty where there is one."""
    if trajectory.stop_reason == "infrastructure":
        return f"no attempt: {trajectory.fault}"
    if trajectory.stop_reason == "cancelled":
        return "no attempt: it was cancelled"
    return ""


def judged(
    trajectory: Trajectory, checked: Checked, signature: Signature, stream_flags: tuple[str, ...] = ()
) -> Reward:
    """The reward of an attempt that was checked; `stream_flags` are what the auditor saw across attempts."""
    judgement = checked.judgement
    cut = trajectory.fault or _CUT_OFF.get(trajectory.stop_reason, "")
    reason = judgement.reason
    if cut and judgement.verdict != "passed":
        reason = f"{cut}: {reason}" if reason else cut
    return _reward(
        trajectory,
        signature,
        verdict=judgement.verdict,
        reward=judgement.reward,
        reason=reason,
        components=dict(judgement.components),
        flags=judgement.flags,
        stream_flags=stream_flags,
        wall_seconds=checked.wall_seconds,
        cpu_seconds=checked.cpu_seconds,
    )


def faulted(trajectory: Trajectory, verdict: Verdict, reason: str, signature: Signature) -> Reward:
    """The terminal word on an attempt that could not be judged: no number, the group goes on without it."""
    assert verdict in FAULTS
    return _reward(trajectory, signature, verdict=verdict, reason=outward(reason))


def _reward(trajectory: Trajectory, signature: Signature, **found: object) -> Reward:
    return Reward(
        trajectory_id=trajectory.trajectory_id,
        slot=trajectory.slot,
        stage=trajectory.stage,
        stage_index=trajectory.stage_index,
        purpose=trajectory.purpose,
        domain=trajectory.domain.name,
        domain_version=trajectory.domain.version,
        policy_version=trajectory.last_version,
        verifier_version=signature.verifier_version,
        worker_id=signature.worker_id,
        attempts=signature.attempts,
        created_ms=signature.now_ms,
        **found,  # type: ignore[arg-type]
    )
