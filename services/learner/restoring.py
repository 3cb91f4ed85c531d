"""What of a policy is in a checkpoint, and how it comes back.

Invariant: weights, masters and moments are written together and restored together, to the bit.
"""

from __future__ import annotations

import torch
from torch import Tensor

from services.learner.checkpoint import Checkpoint
from services.learner.replica import Replica

_MASTER = "master."


def optimizer_file(replica: Replica) -> dict[str, Tensor]:
    """Moments, and the float32 master weights where another dtype is served."""
    tensors = replica.moments()
    if replica.policy.served is not torch.float32:
        tensors.update({f"{_MASTER}{name}": tensor for name, tensor in replica.weights().items()})
    return tensors


def restore(replica: Replica, saved: Checkpoint) -> None:
    """Raises `StorageError` for moments of another model."""
    moments = {name: tensor for name, tensor in saved.optimizer.items() if not name.startswith(_MASTER)}
    replica.put_moments(moments)
    replica.put_weights(master_weights(saved.weights, saved.optimizer))


def master_weights(weights: dict[str, Tensor], optimizer: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weights as they are trained: the masters where the file of the optimizer holds them."""
    masters = {
        name.removeprefix(_MASTER): tensor for name, tensor in optimizer.items() if name.startswith(_MASTER)
    }
    return {**weights, **masters}
