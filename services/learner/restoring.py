"""What of a policy is in a checkpoint, and how it comes back.

Invariant: weights, masters and moments are written together and restored together, to the bit.
"""

from __future__ import annotations

import torch
from torch import Tensor

from services.learner.checkpoint import Checkpoint
from services.learner.model import PolicyModel
from services.learner.optimizer import optimizer_tensors, restore_optimizer

_MASTER = "master."


def optimizer_file(policy: PolicyModel, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Moments, and the float32 master weights where another dtype is served."""
    tensors = optimizer_tensors(policy, optimizer)
    if policy.served is not torch.float32:
        tensors.update({f"{_MASTER}{name}": tensor for name, tensor in policy.named_tensors().items()})
    return tensors


def restore(policy: PolicyModel, optimizer: torch.optim.Optimizer, saved: Checkpoint) -> None:
    """Raises `StorageError` for moments of another model."""
    put(policy, master_weights(saved.weights, saved.optimizer))
    moments = {name: tensor for name, tensor in saved.optimizer.items() if not name.startswith(_MASTER)}
    restore_optimizer(policy, optimizer, moments)


def master_weights(weights: dict[str, Tensor], optimizer: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weights as they are trained: the masters where the file of the optimizer holds them."""
    masters = {
        name.removeprefix(_MASTER): tensor for name, tensor in optimizer.items() if name.startswith(_MASTER)
    }
    return {**weights, **masters}


def put(policy: PolicyModel, weights: dict[str, Tensor]) -> None:
    """Copies them into the policy."""
    with torch.no_grad():
        for name, tensor in policy.named_tensors().items():
            tensor.copy_(weights[name])
