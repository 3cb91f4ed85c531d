"""Whether a policy attends by blocks: where its device can, and the numbers are those under a mask.

Invariant: nobody is believed: a packed line is computed both ways, forward and backward, when the model is loaded. What
fails or differs leaves the policy as it was, with a reason.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from services.learner.attention.kernel import use_in
from services.learner.collate import collate
from services.learner.rows import Branch, Row
from shared.plain_errors import one_line

if TYPE_CHECKING:
    from services.learner.model import PolicyModel

TOLERANCE = 1e-3
BFLOAT16_TOLERANCE = 0.05
"""Of products with 8 bits of mantissa that are added up in another order."""


def attend_by_blocks(policy: PolicyModel) -> str:
    """Lets the policy attend by blocks; else says why not. Compiles for tens of seconds on an accelerator."""
    if not policy.packs:
        return "its rows cannot share a line"
    under_a_mask = _probe(policy)
    take_back = use_in(policy.model)
    policy.blocks = True
    try:
        difference = _difference(_probe(policy), under_a_mask)
        most = TOLERANCE if policy.served is torch.float32 else BFLOAT16_TOLERANCE
        reason = "" if difference <= most else f"it differs from a mask by {difference:.1e}"
    except Exception as error:  # noqa: BLE001 - whatever a compiler raises, a mask does it too
        reason = one_line(error)
    if reason:
        policy.blocks = False
        take_back()
    return reason


def _probe(policy: PolicyModel) -> tuple[Tensor, Tensor]:
    """(log-probabilities, gradient of the embeddings) of rows that share prefixes and a line."""
    ids = ((np.arange(40) * 7 + 1) % policy.vocabulary).astype(np.int32)
    rows = [
        Row(ids[:5], (_branch(ids[5:30]), _branch(ids[8:20]))),
        Row(ids[3:6], (_branch(ids[10:40]),)),
    ]
    batch = collate(rows, policy.device, policy.packing_width, blocks=policy.blocks)
    trained = [parameter for parameter in policy.model.parameters() if parameter.requires_grad]
    logprobs, _ = policy.statistics(batch)
    gradients = torch.autograd.grad(logprobs.sum(), trained, allow_unused=True)
    flat = [gradient.flatten().float() for gradient in gradients if gradient is not None]
    return logprobs.detach().float(), torch.cat(flat)


def _branch(ids: np.ndarray[tuple[int], np.dtype[np.int32]]) -> Branch:
    return Branch(ids, np.ones(ids.size, np.bool_), np.zeros(ids.size, np.float32), attempt=0)


def _difference(found: tuple[Tensor, Tensor], expected: tuple[Tensor, Tensor]) -> float:
    """The larger of: any log-probability, and the gradient in units of its norm."""
    gradient = float((found[1] - expected[1]).norm() / expected[1].norm().clamp(min=1e-12))
    return max(float((found[0] - expected[0]).abs().max()), gradient)
