"""A policy whose weights are sharded over the ranks, or whose sequences are, or both.

Invariant: log-probabilities, entropies and gradients are those of the whole policy on one rank; all ranks that share
shards or rows make every pass together.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from services.learner.adapters.lora import Adapters
from services.learner.attention.kernel import ATTENTION as BY_BLOCKS
from services.learner.attention.kernel import nobodys_mask
from services.learner.attention.registry import register
from services.learner.collate import MicroBatch
from services.learner.distributed.context import ATTENTION, Context, Spread, attention
from services.learner.model import PolicyModel, Reference
from shared.errors import ConfigError
from shared.settings import ParallelSettings

T = TypeVar("T")

PROBE_TOKENS = 11
"""Odd on purpose: padded, and cut across chunks."""


class Outer(nn.Module):
    """Everything that reads weights runs inside its forward pass: FSDP has them whole there and nowhere else."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, call: Callable[..., Any], *arguments: Any) -> Any:
        return call(*arguments)


class SpreadPolicy(PolicyModel):
    """See `PolicyModel`; `named_tensors` are shards (`DTensor`) where the weights are sharded."""

    def __init__(
        self,
        model: Any,
        served: torch.dtype,
        *,
        packs: bool,
        blocks: bool,
        logit_bytes: int,
        mesh: DeviceMesh,
        shard: bool,
        context: Context | None,
        adapters: Adapters | None = None,
    ) -> None:
        super().__init__(model, served, adapters)
        self.packs, self.blocks, self.logit_bytes = packs, blocks, logit_bytes
        self._mesh = mesh
        self._context = context
        self._spread: Spread | None = None
        self._outer: Outer | None = _shard(self, mesh) if shard else None

    @staticmethod
    def of(policy: PolicyModel, mesh: DeviceMesh, parallel: ParallelSettings) -> SpreadPolicy:
        """Takes the policy over. By all ranks.

        Raises `ConfigError` for a model whose attention cannot be spread exactly.
        """
        context = None
        if parallel.context > 1:
            context = Context(mesh.get_group("context"))
            _use_attention(policy.model)
        before = _probe(policy) if context is not None else None
        spread = SpreadPolicy(
            policy.model,
            policy.served,
            packs=policy.packs,
            blocks=policy.blocks and context is None,  # a mask goes with a part of a sequence
            logit_bytes=policy.logit_bytes,
            mesh=mesh,
            shard=parallel.shard,
            context=context,
            adapters=policy.adapters,
        )
        if context is not None and before is not None:
            spread.check(before, context)
        return spread

    def check(self, expected: Tensor, context: Context) -> None:
        """Raises `ConfigError` where a spread sequence does not come out as it does on one rank."""
        found = _probe(self)
        if not context.calls or float((found - expected).abs().max()) > 1e-3:
            raise ConfigError(
                f"learner.parallel.context: the attention of model type {self.model.config.model_type!r} is more than "
                "a causal mask, or does not take ours: its sequences cannot be spread; set context to 1"
            )

    def frozen(self) -> Reference:
        if self.adapters is not None:
            return super().frozen()
        return SpreadPolicy(
            _twin(self.model).eval().requires_grad_(False),
            self.served,
            packs=self.packs,
            blocks=self.blocks,
            logit_bytes=self.logit_bytes,
            mesh=self._mesh,
            shard=self._outer is not None,
            context=self._context,
        ).filled_from(self)

    def filled_from(self, other: PolicyModel) -> SpreadPolicy:
        """Copies the other's weights, shard by shard, and its buffers."""
        theirs = {**dict(other.model.named_parameters()), **dict(other.model.named_buffers())}
        with torch.no_grad():
            for name, tensor in (*self.model.named_parameters(), *self.model.named_buffers()):
                tensor.copy_(theirs[name])
        return self

    def statistics(self, batch: MicroBatch, entropy_gradient: bool = False) -> tuple[Tensor, Tensor]:
        found: tuple[Tensor, Tensor] = self._inside(self._statistics, batch, entropy_gradient)
        return found

    def logprobs(self, batch: MicroBatch) -> Tensor:
        found: Tensor = self._inside(self._logprobs, batch)
        return found

    def score(self, ids: Tensor) -> Tensor:
        found: Tensor = self._inside(super().score, ids)
        return found

    def hidden(self, batch: MicroBatch) -> Tensor:
        if self._spread is None:
            return super().hidden(batch)
        with self._precision():
            states = self.body(
                input_ids=batch.ids,
                attention_mask=nobodys_mask(batch.ids.device),
                position_ids=batch.positions,
                use_cache=False,
                spread=self._spread,
            ).last_hidden_state
        picked: Tensor = states.flatten(0, 1).index_select(0, batch.predictors)
        return picked

    def _statistics(self, batch: MicroBatch, entropy_gradient: bool) -> tuple[Tensor, Tensor]:
        if self._context is None:
            return super().statistics(batch, entropy_gradient)
        count = batch.predictors.numel()
        with self._spreading(self._context, batch) as (part, mine):
            new, entropy = super().statistics(part, entropy_gradient)
        return self._context.whole(new[1:], mine, count), self._context.whole(entropy[1:], mine, count)

    def _logprobs(self, batch: MicroBatch) -> Tensor:
        if self._context is None:
            return super().logprobs(batch)
        with self._spreading(self._context, batch) as (part, mine):
            new = super().logprobs(part)
        return self._context.whole(new[1:], mine, batch.predictors.numel())

    @contextlib.contextmanager
    def _spreading(self, context: Context, batch: MicroBatch) -> Iterator[tuple[MicroBatch, Tensor]]:
        part, self._spread, mine = context.cut(batch)
        try:
            yield part, mine
        finally:
            self._spread = None

    def _inside(self, call: Callable[..., Any], *arguments: Any) -> Any:
        return call(*arguments) if self._outer is None else self._outer(call, *arguments)


def _shard(policy: PolicyModel, mesh: DeviceMesh) -> Outer:
    """Each layer is gathered by itself, and what is outside of layers (embeddings, last norm, head) as one."""
    from torch.distributed.fsdp import FSDPModule, fully_shard

    flat = mesh["data", "context"]._flatten("all") if mesh.ndim > 1 else mesh
    outer = Outer(policy.model)
    for module in [*layers_of(policy.model), outer]:
        fully_shard(module, mesh=flat, reshard_after_forward=True)
    for module in outer.modules():
        if isinstance(module, FSDPModule):
            # Weights of tokens are from the whole batch, so gradients are summed and never averaged; gloo has no
            # scaled sum.
            module.set_force_sum_reduction_for_comms(True)
            module.set_gradient_divide_factor(1.0)
    return outer


def layers_of(model: nn.Module) -> list[nn.Module]:
    """The model's repeated blocks: its longest list of modules that is in no other list, as experts are. Raises
    `ConfigError` where there is none."""
    lists = list(_outermost_lists(model))
    longest = max(lists, key=len, default=None)
    if not longest:
        raise ConfigError(
            f"learner.parallel.shard: {type(model).__name__} has no list of layers to shard by; set it to false"
        )
    return list(longest)


def _outermost_lists(module: nn.Module) -> Iterator[nn.ModuleList]:
    for child in module.children():
        if isinstance(child, nn.ModuleList):
            yield child
        else:
            yield from _outermost_lists(child)


def _use_attention(model: Any) -> None:
    """Raises `ConfigError` for a model that sees a window of the sequence: masks of ours know none."""
    window = getattr(model.config, "sliding_window", None)
    if window and getattr(model.config, "use_sliding_window", True):
        raise ConfigError(
            f"learner.parallel.context: model type {model.config.model_type!r} has layers that see {window} tokens "
            "alone: its sequences cannot be spread; set context to 1"
        )
    register(ATTENTION, attention)
    model.set_attn_implementation(ATTENTION)


def _probe(policy: PolicyModel) -> Tensor:
    """float32[PROBE_TOKENS − 1]: log-probabilities of one short row."""
    import numpy as np

    from services.learner.collate import collate
    from services.learner.rows import Branch, Row

    ids = ((np.arange(PROBE_TOKENS) * 7 + 1) % policy.vocabulary).astype(np.int32)
    sampled = np.ones(PROBE_TOKENS - 1)
    branch = Branch(ids[1:], sampled.astype(np.bool_), sampled.astype(np.float32), attempt=0)
    with torch.no_grad():
        return policy.statistics(collate([Row(ids[:1], (branch,))], policy.device))[0].float()


def _twin(model: Any) -> Any:
    """The same architecture with weights of its own: a sharded model cannot be copied as it is."""
    parameter = next(model.parameters())
    with torch.device(parameter.device):
        twin = type(model)(copy.deepcopy(model.config)).to(parameter.dtype)
    if model.config._attn_implementation in (ATTENTION, BY_BLOCKS):
        twin.set_attn_implementation(model.config._attn_implementation)
    return twin
