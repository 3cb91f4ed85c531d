"""What of a policy is saved in shards: moments, and the float32 master weights where another dtype is served.

Invariant: the tensors are this rank's own (shards, where the weights are sharded), under names that say what they are
of, so any number of ranks finds its parts in what any other number has written.
"""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor

from services.learner.model import PolicyModel
from services.learner.optimizer import optimizer_tensors

MASTER = "master."


def saved_tensors(policy: PolicyModel, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """To be written. Masters beside float32 weights would be the same bytes again."""
    tensors = optimizer_tensors(policy, optimizer)
    if policy.served is not torch.float32:
        tensors.update(_masters(policy))
    return tensors


def wanted_tensors(
    policy: PolicyModel, optimizer: torch.optim.Optimizer, saved: Collection[str]
) -> dict[str, Tensor]:
    """To be filled, where the names `saved` are there."""
    return {
        **optimizer_tensors(policy, optimizer),
        **{name: tensor for name, tensor in _masters(policy).items() if name in saved},
    }


def _masters(policy: PolicyModel) -> dict[str, Tensor]:
    return {f"{MASTER}{name}": tensor for name, tensor in policy.named_tensors().items()}
