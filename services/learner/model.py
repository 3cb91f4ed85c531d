"""The policy as the learner holds it: a causal language model, its head apart from its body.

Invariant: the master weights are float32 whatever dtype is served; logits exist only at positions that the loss
reads. What this module cannot compute exactly it refuses when it loads, not in a loss.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import structlog
import torch
from torch import Tensor

from services.learner.adapters.lora import Adapters, add_adapters
from services.learner.adapters.reference import AdapterReference
from services.learner.attention.choice import attend_by_blocks
from services.learner.attention.kernel import nobodys_mask
from services.learner.attention.spans import additive
from services.learner.collate import MicroBatch
from services.learner.model_check import check_model
from services.learner.objectives.linear_head import Head, linear_statistics
from services.learner.objectives.logprobs import selective_log_softmax, token_statistics
from shared.errors import ConfigError, DependencyError
from shared.model_folder import check_loaded, check_weights
from shared.plain_errors import one_line
from shared.settings import LearnerSettings, ModelSettings
from shared.weights.adapter import folder_sha256

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_DEFAULT_POSITIONS = 1 << 20
_LOGIT_BYTES = 256 << 20


class Reference(Protocol):
    """A policy that learns nothing, to be measured against."""

    def named_tensors(self) -> dict[str, Tensor]: ...

    def logprobs(self, batch: MicroBatch) -> Tensor: ...


class PolicyModel:
    """`model` is a Hugging Face causal language model in its master dtype."""

    def __init__(
        self, model: Any, served: torch.dtype = torch.float32, adapters: Adapters | None = None
    ) -> None:
        self.model = model
        self.served = served
        self.head: Any = model.get_output_embeddings()
        self.body: Any = model.base_model
        self.vocabulary, self.width = (int(size) for size in model.get_input_embeddings().weight.shape)
        self.max_tokens: int = getattr(model.config, "max_position_embeddings", None) or _DEFAULT_POSITIONS
        self.packs = True
        self.blocks = False
        self.adapters = adapters
        self.logit_bytes = _LOGIT_BYTES

    @property
    def packing_width(self) -> int:
        """By which layouts are compared (`attention_cost`); 0 where a packed line costs what is seen and no more."""
        return 0 if self.blocks else self.width

    @property
    def attention(self) -> str:
        """How rows are laid out and attended: `blocks` and `mask` in shared lines, `padding` in a line for each."""
        return "blocks" if self.blocks else "mask" if self.packs else "padding"

    @property
    def device(self) -> torch.device:
        return next(iter(self.model.parameters())).device  # type: ignore[no-any-return]

    def named_tensors(self) -> dict[str, Tensor]:
        """Parameters and kept buffers by name; a tied tensor once, under its first name. Of adapters, those alone."""
        if self.adapters is not None:
            return self.adapters.named_tensors()
        out: dict[str, Tensor] = {}
        seen: set[int] = set()
        for name, tensor in self.model.state_dict(keep_vars=True).items():
            if id(tensor) not in seen:
                seen.add(id(tensor))
                out[name] = tensor.detach()
        return out

    def published_tensors(self) -> dict[str, Tensor]:
        """The named tensors in the dtype that is served; float32 ones are the master weights themselves. Adapters are
        float32 always: they are small, and what they make is rounded once."""
        if self.adapters is not None:
            return self.named_tensors()
        return {
            name: tensor.to(self.served) if tensor.is_floating_point() else tensor
            for name, tensor in self.named_tensors().items()
        }

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of the named tensors, and what adapters are laid on: what a checkpoint must fit."""
        shapes = {name: tuple(tensor.shape) for name, tensor in self.named_tensors().items()}
        if self.adapters is not None:
            info = self.adapters.info
            shapes[f"base {info.base_sha256}, scale {info.scale:g}"] = ()
        return shapes

    def frozen(self) -> Reference:
        """A copy of it as it is now, without gradients."""
        if self.adapters is not None:
            return AdapterReference(self, self.adapters)
        twin = PolicyModel(copy.deepcopy(self.model).eval().requires_grad_(False), self.served)
        twin.packs, twin.blocks, twin.logit_bytes = self.packs, self.blocks, self.logit_bytes
        return twin

    def hidden(self, batch: MicroBatch) -> Tensor:
        """[n, width]: the hidden state that predicts each sampled token."""
        how: dict[str, Any] = {"attention_mask": None}
        if batch.spans is not None:
            how = {"attention_mask": nobodys_mask(batch.ids.device), "blocks": batch.spans.blocks()}
        elif batch.mask is not None:
            how = {"attention_mask": additive(batch.mask, self._multiplied)}
        with self._precision():
            states = self.body(
                input_ids=batch.ids, position_ids=batch.positions, use_cache=False, **how
            ).last_hidden_state
        picked: Tensor = states.flatten(0, 1).index_select(0, batch.predictors)
        return picked

    @property
    def _multiplied(self) -> torch.dtype:
        """In which matrices are multiplied."""
        first: torch.dtype = next(iter(self.model.parameters())).dtype
        return first if self.served is torch.float32 else self.served

    def statistics(self, batch: MicroBatch, entropy_gradient: bool = False) -> tuple[Tensor, Tensor]:
        """(log-probability with gradient, entropy) of each sampled token: both [n]."""
        hidden, head = self.hidden(batch), self._linear_head()
        if head is None:
            rows = max(1, self.logit_bytes // (4 * self.vocabulary))
            return token_statistics(hidden, batch.targets, self._logits, rows, entropy_gradient)
        logprobs, entropy = linear_statistics(hidden, batch.targets, head, True, entropy_gradient)
        assert entropy is not None
        return logprobs, entropy

    def logprobs(self, batch: MicroBatch) -> Tensor:
        """[n]: log-probability of each sampled token, without a gradient and without the entropy's passes."""
        with torch.no_grad():
            head = self._linear_head()
            if head is None:
                return self.statistics(batch)[0]
            return linear_statistics(self.hidden(batch), batch.targets, head, entropy=False)[0]

    def _linear_head(self) -> Head | None:
        """None where the head is more than its matrix: hooks, an adapter, a shard."""
        if type(self.head) is not torch.nn.Linear or self.head._forward_hooks or self.head._forward_pre_hooks:
            return None
        return Head(self.head.weight, self.head.bias, self._multiplied, self.logit_bytes)

    def score(self, ids: Tensor) -> Tensor:
        """float32[t]: log p(token | earlier ones) of one sequence int64[t] in the served precision; 0 first."""
        with torch.no_grad(), self._precision():
            logits = self.model(input_ids=ids.unsqueeze(0), use_cache=False).logits[0, :-1].float()
        out = torch.zeros(ids.shape[0], dtype=torch.float32)
        out[1:] = selective_log_softmax(logits, ids[1:]).cpu()
        return out

    def _logits(self, states: Tensor) -> Tensor:
        with self._precision():
            logits: Tensor = self.head(states)
        return logits

    @contextlib.contextmanager
    def _precision(self) -> Iterator[None]:
        if self.served is torch.float32:
            yield
        else:
            with torch.autocast(self.device.type, dtype=self.served):
                yield


def choose_device(name: str) -> torch.device:
    """`auto` is the accelerator where there is one. Raises `DependencyError` for one that is not there."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"learner.device is {name!r}: use auto, cpu, cuda or cuda:<n>") from error
    count = torch.cuda.device_count() if device.type == "cuda" else 0
    if device.type == "cuda" and (device.index or 0) >= count:
        raise DependencyError(
            f"learner.device is {name!r} and this machine has {count} such accelerators: use auto or cpu"
        )
    return device


def load_policy(model: ModelSettings, learner: LearnerSettings, seed: int = 0) -> PolicyModel:
    """The policy of a Hugging Face folder, ready to train.

    Raises `DependencyError` (folder missing or unreadable, with the mend) and `ConfigError` (an architecture whose
    logits are not its head applied to its last hidden state).
    """
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging as transformers_logging

    if learner.threads:
        torch.set_num_threads(learner.threads)
    device = choose_device(learner.device)
    folder = Path(model.path)
    check_weights(model.path)
    transformers_logging.disable_progress_bar()
    try:
        loaded, info = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=torch.float32,
            local_files_only=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
        )
    except Exception as error:
        raise DependencyError(f"model.path {model.path!r} cannot be loaded: {one_line(error)}") from error
    check_loaded(model.path, info)
    adapters = None
    if learner.lora.rank:
        adapters = add_adapters(loaded, learner.lora, folder_sha256(folder), seed)
    policy = PolicyModel(loaded.to(device).train(), _DTYPES[model.dtype], adapters)
    policy.logit_bytes = learner.logit_chunk_mb << 20
    check_model(policy)
    if learner.attention == "blocks" or (learner.attention == "auto" and device.type == "cuda"):
        _attend_by_blocks(policy, demanded=learner.attention == "blocks")
    if learner.activation_checkpointing:
        checkpoint_activations(policy, model.path)
    return policy


def _attend_by_blocks(policy: PolicyModel, *, demanded: bool) -> None:
    """Raises `ConfigError` where that was demanded and cannot be."""
    reason = attend_by_blocks(policy)
    if reason and demanded:
        raise ConfigError(
            f'learner.attention is "blocks" and {policy.device.type} cannot attend so: {reason}; set it to "auto"'
        )
    if reason:
        structlog.get_logger().warning("attention.under_a_mask", reason=reason)


def checkpoint_activations(policy: PolicyModel, path: str) -> None:
    """Keeps only the input of each layer and computes the rest again in the backward pass (Chen et al. 2016).

    A model in evaluation mode, such as a frozen reference, keeps nothing anyway. Raises `ConfigError`.
    """
    if not getattr(policy.model, "supports_gradient_checkpointing", False):
        raise ConfigError(
            f"learner.activation_checkpointing: model type {policy.model.config.model_type!r} of {path!r} "
            "cannot compute its layers again; set it to false"
        )
    model: Any = policy.model
    # Newer releases of transformers call it so and the older name is deprecated there.
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": False})
