"""How a policy comes back from a checkpoint.

Invariant: weights, masters and moments are written together and restored together, to the bit.
"""

from __future__ import annotations

from torch import Tensor

from services.learner.checkpoint import Checkpoint
from services.learner.replica import Replica
from services.learner.saved_tensors import MASTER
from services.learner.sharded import SavedShards, read_sharded


def restore(replica: Replica, saved: Checkpoint) -> None:
    """Raises `StorageError`: damaged, or moments of another model."""
    if not any(name.startswith(MASTER) for name in saved.optimizer.kinds()):
        replica.put_weights(saved.weights)
    replica.load_optimizer(saved.optimizer)


def master_weights(weights: dict[str, Tensor], optimizer: SavedShards) -> dict[str, Tensor]:
    """Weights as they are trained, whole: the masters where there are any. Raises `StorageError`."""
    masters = read_sharded(optimizer, MASTER)
    return {**weights, **{name.removeprefix(MASTER): tensor for name, tensor in masters.items()}}
