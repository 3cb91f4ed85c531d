"""Steps that are taken twice, by one process and by two ranks, and must come out the same.

Everything is in float64: what differs is the order in which numbers are added up, some 1e-14 of the sum, and anything
above TOLERANCE is a mistake. In float32 a lost token of a small batch would hide in the rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from learner_builders import demonstration, reward, sequence, trajectory
from learner_models import VOCABULARY, small_policy

from services.learner.adapters.lora import add_adapters
from services.learner.batching import Batch
from services.learner.checkpoint import CheckpointStore
from services.learner.distributed.ranks import Ranks
from services.learner.intake.attempts import Terms
from services.learner.intake.groups import JudgedGroup, judge
from services.learner.intake.join import FilledSlot
from services.learner.manifest import OPTIMIZER
from services.learner.model import PolicyModel, checkpoint_activations
from services.learner.objectives.presets import Objective, preset
from services.learner.pairing import batch_of
from services.learner.replica import Replica
from services.learner.sharded import SavedShards, read_sharded
from shared.settings import LearnerSettings, LoraSettings, ParallelSettings
from shared.storage import ObjectStore

TOLERANCE = 1e-9
MODES = {
    "data": ParallelSettings(),
    "shard": ParallelSettings(shard=True),
    "context": ParallelSettings(context=2),
    "shard and context": ParallelSettings(shard=True, context=2),
}
OBJECTIVES: dict[str, Objective] = {
    "sft": preset("sft"),
    "grpo": preset("grpo", entropy_coefficient=0.01),
    "kl in the loss": preset("grpo", kl_coefficient=0.1),
    "kl in the reward": preset("reinforce_plus_plus", kl_coefficient=0.3),
    "gspo": preset("gspo"),
    "dpo": preset("dpo"),
}


@dataclass(frozen=True)
class Outcome:
    """After two steps, on rank 0: gradients are in the moments, which are (1 − β₁)·g after the first."""

    losses: list[float]
    norms: list[float]
    tokens: int
    moments: dict[str, torch.Tensor]
    weights: dict[str, torch.Tensor]
    canary: list[float]
    again: bool
    """The second step, taken again from what the first one left, gave the same weights to the bit."""


def group(objective: Objective, index: int, lengths: list[int]) -> JudgedGroup:
    terms = Terms(objective, vocabulary=VOCABULARY, max_tokens=128, version=0, max_lag=1)
    if objective.kind == "imitation":
        name = f"0-sft-{index:07d}"
        made = demonstration(name)
        ids = [(5 * index + t) % VOCABULARY for t in range(lengths[0])]
        made = made.model_copy(
            update={"sequences": (sequence([1, 2, index], ids, [0.0] * lengths[0], version=-1),)}
        )
        return judge(name, {0: FilledSlot(made, None, (), "")}, terms)
    name, slots = f"0-rl-{index:07d}", {}
    for sample, n in enumerate(lengths):
        ids = [(7 * index + 3 * sample + t) % VOCABULARY for t in range(n)]
        made = trajectory(
            name, sample, size=len(lengths), sequences=(sequence([1, 2, index], ids, [-2.0] * n),)
        )
        slots[sample] = FilledSlot(made, reward(made, sample / (len(lengths) - 1)), (), "")
    return judge(name, slots, terms)


def batch(objective: Objective) -> Batch:
    """Rows of very different lengths, so that shares of equal cost have unequal numbers of micro-batches."""
    lengths = [[2, 5], [9, 1, 3], [4, 4], [30, 2], [1, 1], [6, 7, 2]]
    return batch_of([group(objective, n, sizes) for n, sizes in enumerate(lengths)], objective, 64, pack=True)


def policy_of(seed: int = 0) -> PolicyModel:
    return small_policy(torch.float64, seed=seed)


def lora_policy_of(seed: int = 0) -> PolicyModel:
    """Scale 2, four adapted matrices."""
    policy = policy_of(seed)
    settings = LoraSettings(rank=2, alpha=4.0, targets=("q_proj", "down_proj"))
    adapters = add_adapters(policy.model, settings, "digest", seed)
    return PolicyModel(policy.model, policy.served, adapters)


def checkpointed_policy_of(seed: int = 0) -> PolicyModel:
    """Layers are computed again in the backward pass, with the collectives that are in them."""
    policy = policy_of(seed)
    checkpoint_activations(policy, "model")
    return policy


def bfloat16_policy_of(seed: int = 0) -> PolicyModel:
    return PolicyModel(small_policy(seed=seed).model, torch.bfloat16)


POLICIES: dict[str, Callable[[int], PolicyModel]] = {
    "adapters": lora_policy_of,
    "activation checkpointing": checkpointed_policy_of,
    "bfloat16": bfloat16_policy_of,
}
"""Under "kl in the loss"."""


def tolerance_of(name: str) -> float:
    """bfloat16 has 8 bits of mantissa: other shapes of the same products round otherwise, and a gradient of a few hundred
    of them differs by some hundredths (0.013 was seen)."""
    return 0.05 if name == "bfloat16" else TOLERANCE


def replica_of(policy: PolicyModel, ranks: Ranks | None = None) -> Replica:
    return Replica(policy, LearnerSettings(micro_batch_tokens=48, max_gradient_norm=0.5), ranks=ranks)


def run(replica: Replica, objective: Objective, checkpoints: CheckpointStore) -> Outcome:
    """Two steps and a look at everything that can be looked at. On rank 0, or alone."""
    saved: SavedShards | None = None
    if replica.policy.adapters is not None:
        replica.freeze_reference()
    elif objective.needs_reference:
        replica.put_reference(policy_of(seed=3).named_tensors())
    taken, first = [], {}
    for _ in range(2):
        taken.append(replica.take(batch(objective), objective, 1e-3, objective.kl_coefficient))
        saved = saved or written(replica, checkpoints)
        first = first or copies(replica.weights())
    weights = copies(replica.weights())
    canary = replica.canary(1e-3).logprobs.tolist()
    # Back to after the first step, as a resumed run or a roll-back goes.
    assert saved is not None
    replica.put_weights(first)
    replica.load_optimizer(saved)
    replica.take(batch(objective), objective, 1e-3, objective.kl_coefficient)
    return Outcome(
        [metrics.loss for metrics in taken],
        [metrics.gradient_norm for metrics in taken],
        taken[0].tokens,
        read_sharded(saved, "exp_avg"),
        weights,
        canary,
        again=all(torch.equal(tensor, weights[name]) for name, tensor in replica.weights().items()),
    )


def written(replica: Replica, checkpoints: CheckpointStore, step: int = 1) -> SavedShards:
    """The optimizer's state, by every rank its part."""
    staged = replica.stage_optimizer(step)
    files = checkpoints.write_optimizer(step, staged, replica.beside)
    digests = {name: file.sha256 for name, file in files.items()}
    return SavedShards(checkpoints.store, checkpoints.folder(step), OPTIMIZER, digests, Path("unused"))


def store_in(folder: Path, name: str) -> CheckpointStore:
    return CheckpointStore(ObjectStore(f"file://{folder}"), name)


def copies(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in tensors.items()}
