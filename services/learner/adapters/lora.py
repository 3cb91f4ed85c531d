"""LoRA (arXiv 2106.09685): a linear layer's own weights stay, a product of two thin matrices beside it is trained.

Invariant: with B = 0, as it begins, the layer computes what it did before, to the bit. What is measured `as_reference`
is the policy as it was when the reference was made: only thin matrices are copied for that, and none where they were
still 0.

A module of 40 lines instead of peft, whose import took as long as torch's own (8.5 s beside 8.6 s, on two busy cores),
brings accelerate and psutil along, and renames every parameter of the model. peft reads the tensors under these names,
and its model then gives the same logits to the bit.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from shared.errors import ConfigError
from shared.plain_errors import nearest
from shared.settings import LoraSettings
from shared.weights.adapter import AdapterInfo, names_of


@dataclass
class Switch:
    """Of all adapted layers of a model: what they compute with."""

    reference: bool = False


class AdaptedLinear(nn.Module):
    """A [rank, in], B [out, rank] in float32; `base` is frozen."""

    def __init__(self, base: nn.Linear, rank: int, scale: float, switch: Switch, seed: int) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.in_features, self.out_features = base.in_features, base.out_features
        generator = torch.Generator().manual_seed(seed)
        bound = 1 / math.sqrt(base.in_features)  # as every linear layer begins
        a = torch.empty(rank, base.in_features, dtype=base.weight.dtype).uniform_(
            -bound, bound, generator=generator
        )
        self.lora_a = nn.Parameter(a.to(base.weight.device))
        self.lora_b = nn.Parameter(base.weight.new_zeros(base.out_features, rank))
        self.register_buffer("reference_a", torch.zeros_like(self.lora_a.detach()), persistent=False)
        self.register_buffer("reference_b", torch.zeros_like(self.lora_b.detach()), persistent=False)
        self.reference_a: Tensor
        self.reference_b: Tensor
        self._scale = scale
        self._switch = switch

    def forward(self, states: Tensor) -> Tensor:
        out: Tensor = self.base(states)
        if self._switch.reference:
            return out + self._scale * linear(linear(states, self.reference_a), self.reference_b)
        return out + self._scale * linear(linear(states, self.lora_a), self.lora_b)


class Adapters:
    """All adapters of a model."""

    def __init__(self, info: AdapterInfo, layers: dict[str, AdaptedLinear], switch: Switch) -> None:
        self.info = info
        self._layers = layers
        self._switch = switch

    def named_tensors(self) -> dict[str, Tensor]:
        """What is trained, under the names of its file."""
        out: dict[str, Tensor] = {}
        for module, layer in self._layers.items():
            a, b = names_of(module)
            out[a], out[b] = layer.lora_a.detach(), layer.lora_b.detach()
        return out

    def reference_tensors(self) -> dict[str, Tensor]:
        """Of the reference, likewise."""
        out: dict[str, Tensor] = {}
        for module, layer in self._layers.items():
            a, b = names_of(module)
            out[a], out[b] = layer.reference_a, layer.reference_b
        return out

    @contextlib.contextmanager
    def as_reference(self) -> Iterator[None]:
        self._switch.reference = True
        try:
            yield
        finally:
            self._switch.reference = False


def add_adapters(model: nn.Module, settings: LoraSettings, base_sha256: str, seed: int) -> Adapters:
    """Puts adapters beside the targeted linear layers of `model`; nothing else of it is trained from here on.

    Raises `ConfigError` for a target that the model does not have.
    """
    model.requires_grad_(False)
    info = AdapterInfo(settings.rank, settings.alpha or float(settings.rank), base_sha256)
    switch, layers = Switch(), {}
    for number, module in enumerate(targets_of(model, settings.targets)):
        parent, _, name = module.rpartition(".")
        base = model.get_submodule(module)
        assert isinstance(base, nn.Linear)
        # A stream for every layer: adapters do not depend on which others there are.
        layer = AdaptedLinear(base, settings.rank, info.scale, switch, seed * 1_000_003 + number)
        setattr(model.get_submodule(parent), name, layer)
        layers[module] = layer
    return Adapters(info, layers, switch)


def targets_of(model: nn.Module, wanted: Sequence[str]) -> list[str]:
    """Names of the linear layers that end in one of `wanted`; without any, all but the head."""
    head = getattr(model, "get_output_embeddings", lambda: None)()
    linears = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and module is not head
    }
    ends = {name.rpartition(".")[2] for name in linears}
    for target in wanted:
        if not any(name == target or name.endswith(f".{target}") for name in linears):
            raise ConfigError(
                f"learner.lora.targets: the model has no linear layer {target!r}; it has "
                f"{', '.join(sorted(ends))}{nearest(target, ends)}"
            )
    return [
        name
        for name in linears
        if not wanted or any(name == target or name.endswith(f".{target}") for target in wanted)
    ]
