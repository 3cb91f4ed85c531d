"""The reference of a policy that trains adapters: the same model with the adapters of then.

Invariant: no second copy of the model is in memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from services.learner.adapters.lora import Adapters
from services.learner.collate import MicroBatch
from services.learner.distributed.spread import whole

if TYPE_CHECKING:
    from services.learner.model import PolicyModel


class AdapterReference:
    """Made of the policy as it is now. See `model.Reference`."""

    def __init__(self, policy: PolicyModel, adapters: Adapters) -> None:
        self._policy = policy
        self._adapters = adapters
        with torch.no_grad():
            now = adapters.named_tensors()
            for name, tensor in adapters.reference_tensors().items():
                tensor.copy_(whole(now[name]))

    def named_tensors(self) -> dict[str, Tensor]:
        return self._adapters.reference_tensors()

    def logprobs(self, batch: MicroBatch) -> Tensor:
        with self._adapters.as_reference():
            return self._policy.logprobs(batch)
