"""AdamW, its schedule, and its state as named tensors.

Invariant: the state is addressed by parameter name, so that a checkpoint says what it holds and fits only the
model that made it.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from services.learner.model import PolicyModel
from services.learner.sharded.index import TensorKind
from shared.errors import StorageError
from shared.settings import LearnerSettings

_MOMENTS = ("exp_avg", "exp_avg_sq", "step")
_FUSED = {"cpu", "cuda", "mps", "xpu"}
"""Devices with a fused kernel in torch 2.6 and newer."""


def make_optimizer(policy: PolicyModel, settings: LearnerSettings) -> torch.optim.AdamW:
    """Matrices decay, vectors (norms, biases) do not. The rate is set before every step.

    One kernel updates everything where the device has one; torch itself asks only when the first step is taken.
    """
    parameters = [p for p in policy.model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": settings.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    fused = all(p.is_floating_point() and p.device.type in _FUSED for p in parameters)
    return torch.optim.AdamW(
        [group for group in groups if group["params"]], lr=0.0, betas=settings.betas, fused=fused
    )


def learning_rate(peak: float, warmup_steps: int, stage_step: int) -> float:
    """Of the stage's step number `stage_step` (from 0): linear to `peak` over `warmup_steps`, then constant."""
    return peak * min(1.0, (stage_step + 1) / (warmup_steps + 1))


def optimizer_tensors(policy: PolicyModel, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """`exp_avg.<parameter>`, `exp_avg_sq.<parameter>`, `step.<parameter>`; empty before the first step."""
    out: dict[str, Tensor] = {}
    for name, parameter in policy.model.named_parameters():
        state = optimizer.state.get(parameter)
        if state:
            out.update({f"{kind}.{name}": state[kind] for kind in _MOMENTS})
    return out


def check_moments(policy: PolicyModel, kinds: Mapping[str, TensorKind]) -> bool:
    """Whether there are any. Raises `StorageError` when the tensors are those of another model."""
    some = any(name.startswith(_MOMENTS) for name in kinds)
    for name, parameter in _trained(policy) if some else ():
        moment = kinds.get(f"exp_avg.{name}")
        if moment is None or moment.shape != tuple(parameter.shape):
            raise StorageError(f"the checkpoint's optimizer holds no state of {name}: it is of another model")
    return some


def make_moments(policy: PolicyModel, optimizer: torch.optim.Optimizer, *, some: bool) -> None:
    """Zeros that are to be filled, or none."""
    optimizer.state.clear()
    for _, parameter in _trained(policy) if some else ():
        optimizer.state[parameter] = {
            "exp_avg": torch.zeros_like(parameter.detach()),
            "exp_avg_sq": torch.zeros_like(parameter.detach()),
            "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
        }


def _trained(policy: PolicyModel) -> list[tuple[str, torch.nn.Parameter]]:
    return [(name, p) for name, p in policy.model.named_parameters() if p.requires_grad]
