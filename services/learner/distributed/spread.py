"""Whole tensors in and out of whatever a rank holds: a tensor, or its shard of one.

Invariant: rank 0's values reach every rank to the bit; at most one whole tensor exists beside the shards at a time.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from services.learner.balance import balance
from services.learner.distributed.ranks import Ranks


def whole(tensor: Tensor) -> Tensor:
    """The tensor itself, or all its shards put together: then by all ranks."""
    from torch.distributed.tensor import DTensor

    if isinstance(tensor, DTensor):
        found: Tensor = tensor.full_tensor()
        return found
    return tensor


def wholes(tensors: Mapping[str, Tensor], ranks: Ranks) -> dict[str, Tensor]:
    """On rank 0, shards put together on the host; empty on the others."""
    out = {}
    for name, tensor in tensors.items():
        found = whole(tensor)
        if ranks.leads:
            out[name] = found if found is tensor else found.cpu()
        del found
    return out


def own_part(tensors: Mapping[str, Tensor], ranks: Ranks) -> dict[str, Tensor]:
    """What this rank writes: its shards, and of the whole tensors, which all ranks hold alike, about as many bytes as
    any other."""
    from torch.distributed.tensor import DTensor

    whole = [name for name, tensor in tensors.items() if not isinstance(tensor, DTensor)]
    parts = balance([tensors[name].nbytes for name in whole], ranks.count)
    others = set(whole) - {whole[index] for index in parts[ranks.rank]}
    return {name: tensor for name, tensor in tensors.items() if name not in others}


def put(targets: Mapping[str, Tensor], values: Mapping[str, Tensor], ranks: Ranks) -> None:
    """Copies rank 0's `values` into the `targets` of all ranks, by name; the others' `values` are not read."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    with torch.no_grad():
        for name, target in targets.items():
            if not isinstance(target, DTensor):
                if ranks.leads:
                    target.copy_(values[name])
                ranks.give(target)
                continue
            buffer = torch.empty(target.shape, dtype=target.dtype, device=target.device)
            if ranks.leads:
                buffer.copy_(values[name])
            ranks.give(buffer)
            # Every rank has the same whole tensor now, and takes its own part without a word.
            target.copy_(distribute_tensor(buffer, target.device_mesh, target.placements, src_data_rank=None))
