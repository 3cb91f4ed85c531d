"""What a replayed step has to say beside the recorded one.

Invariant: `same` means equal to the last bit in every number that a step says of its learning, and in the weights
where the run has a checkpoint of that step; times are not compared.
"""

from __future__ import annotations

from dataclasses import dataclass

from shared.contracts import Step

_NUMBERS = (
    "loss", "kl", "entropy", "clip_fraction", "gradient_norm", "effective_sample_size", "learning_rate",
    "trained_trajectories", "trained_tokens", "action", "rewards", "loss_terms",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Side:
    loss: float
    kl: float
    reward: float | None
    gradient_norm: float


@dataclass(frozen=True, slots=True)
class ComparedStep:
    step: int
    stage: str
    recorded: Side
    replayed: Side
    differs: tuple[str, ...]
    """Names of what is not equal to the last bit."""

    @property
    def same(self) -> bool:
        return not self.differs


def compare(recorded: Step, replayed: Step, weights: tuple[str, str] | None) -> ComparedStep:
    """`weights`: digests of what either made; None where the run kept no record of them."""
    differs = [name for name in _NUMBERS if getattr(recorded, name) != getattr(replayed, name)]
    if _slots(recorded) != _slots(replayed):
        differs.append("slots")
    if weights is not None and weights[0] != weights[1]:
        differs.append("weights")
    return ComparedStep(recorded.step, recorded.stage, _side(recorded), _side(replayed), tuple(differs))


def _side(step: Step) -> Side:
    return Side(step.loss, step.kl, _reward(step), step.gradient_norm)


def _reward(step: Step) -> float | None:
    """Mean over every attempt that has one."""
    count = sum(reward.count for reward in step.rewards.values())
    total = sum(reward.mean * reward.count for reward in step.rewards.values())
    return total / count if count else None


def _slots(step: Step) -> set[tuple[str, int]]:
    return {(slot.group_id, slot.sample_index) for slot in step.slots()}
