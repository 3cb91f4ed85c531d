"""The copy of a policy from which its checkpoint is written while the next step changes the policy itself.

Invariant: a staged tensor is what the policy held between two steps, to the bit, and no later step touches it. One
checkpoint is written at a time, so one set of copies is enough: the next one is put into the same memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from services.learner.snapshot import Snapshot
from shared.contracts import Canary

if TYPE_CHECKING:
    from services.learner.reference import FrozenReference


@dataclass(frozen=True, slots=True)
class Staged:
    """Everything that a checkpoint is written from."""

    snapshot: Snapshot
    weights: Mapping[str, Tensor]
    """In the dtype that is served."""
    optimizer: Mapping[str, Tensor]
    """This rank's part."""
    canary: Canary
    reference: FrozenReference | None


class HostCopies:
    """Copies in this machine's memory, kept for the next time: 12 bytes a parameter of a float32 policy, once."""

    def __init__(self) -> None:
        self._kept: dict[str, Tensor] = {}

    def of(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Valid until the next call. Names that are no longer there are let go."""
        copies: dict[str, Tensor] = {}
        for name, tensor in tensors.items():
            copy = self._kept.get(name)
            if copy is None or copy.shape != tensor.shape or copy.dtype != tensor.dtype:
                copy = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
            copies[name] = copy.copy_(tensor, non_blocking=tensor.is_cuda)
        if any(tensor.is_cuda for tensor in tensors.values()):
            torch.cuda.synchronize()
        self._kept = copies
        return dict(copies)
