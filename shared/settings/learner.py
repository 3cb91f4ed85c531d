"""The learner: batches, processes, adapters, checkpoints."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from shared.settings.section import Section


class KeepSettings(Section):
    """Which checkpoints keep their weights beside the newest `learner.keep_checkpoints` and those that the guard may
    go back to."""

    every: int = Field(default=0, ge=0)
    """Each step that it divides; 0: none."""
    best: int = Field(default=0, ge=0)
    """So many of the highest held-out pass rate."""
    best_of: str = ""
    """The domain whose pass rate counts; empty: all together."""


class ParallelSettings(Section):
    """How several learner processes share the work. Without any of it each has the whole model and a share of every
    batch."""

    shard: bool = False
    """Weights, gradients and moments in pieces, one a process (FSDP2)."""
    context: int = Field(default=1, ge=1)
    """Processes that each sequence is spread over; the rest of their number shares the batch."""
    timeout_s: float = Field(default=1800.0, ge=10)
    """How long a process waits for another before all of them end."""


class LoraSettings(Section):
    """Trains low-rank adapters beside the model's weights, which stay as they are; policies are published as adapters."""

    rank: int = Field(default=0, ge=0)
    """0: the weights themselves are trained."""
    alpha: float = Field(default=0.0, ge=0)
    """What an adapter adds is scaled by alpha / rank; 0: as large as the rank."""
    targets: tuple[str, ...] = ()
    """Linear layers by the end of their name, such as "q_proj"; none: all but the head."""


class LearnerSettings(Section):
    processes: int = Field(default=1, ge=1)
    """Of the one learner, on this machine; `torchrun` starts them on several."""
    parallel: ParallelSettings = ParallelSettings()
    lora: LoraSettings = LoraSettings()
    micro_batch_tokens: int = Field(default=4096, ge=16)
    """Padded tokens in one forward and backward pass, at most; a batch is cut into equal ones."""
    logit_chunk_mb: int = Field(default=256, ge=1)
    """MiB of the largest array of logits. Logits beyond it are made in chunks and made again in the backward pass."""
    attention: Literal["auto", "mask", "blocks"] = "auto"
    """Of rows that share a line, each blind to the others. `blocks`: a kernel that computes what is seen and no more
    (flex_attention); `auto`: on CUDA, where it gives the numbers of a mask when the model is loaded."""
    activation_checkpointing: bool = False
    """Keep each layer's input alone and compute the layer again in the backward pass: less memory, more time."""
    weight_decay: float = Field(default=0.0, ge=0)
    """AdamW's, decoupled."""
    betas: tuple[float, float] = (0.9, 0.999)
    """AdamW's, of its two moments."""
    max_gradient_norm: float = Field(default=1.0, gt=0)
    """The gradient of a step is scaled down to it."""
    checkpoint_every: int = Field(default=1, ge=1)
    """Steps between checkpoints; a policy is published with each."""
    keep_checkpoints: int = Field(default=2, ge=1)
    """The newest; older ones are stripped of weights and optimizer."""
    keep: KeepSettings = KeepSettings()
    threads: int = Field(default=0, ge=0)
    """Of torch; 0: as many as it chooses."""
    device: str = "auto"
    """`auto`: an accelerator where there is one."""
    max_buffered_groups: int = Field(default=64, ge=1)
    """Back-pressure: trajectories wait in their topics beyond it."""
    canary_tolerance: float = Field(default=1e-3, gt=0)
    """How far an engine's log-probabilities of the canary may be from the learner's before it refuses the policy."""
