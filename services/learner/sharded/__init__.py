"""Tensors of one or many ranks in the object store, by `torch.distributed.checkpoint`.

Invariant: what n ranks wrote, m ranks read to the bit, whatever n and m and however either side shards.
"""

from services.learner.sharded.sharded import SavedShards, load_sharded, read_sharded, save_sharded

__all__ = ["SavedShards", "load_sharded", "read_sharded", "save_sharded"]
