"""Policy: an announcement of durable, attested weights (invariants 3 and 8)."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from shared.contracts.arrays import Float32Array, Int32Array
from shared.contracts.base import Message, Part
from shared.contracts.slot import Stage


class TensorEntry(Part):
    name: str
    dtype: str
    shape: tuple[int, ...]
    sha256: str


class WeightsRef(Part):
    """A safetensors object and what it must hash to. `sha256` is over the whole object."""

    uri: str
    sha256: str
    size_bytes: int = Field(ge=0)
    kind: Literal["full", "delta", "adapter"] = "full"
    """`adapter`: to be laid on the model of `model_uri`; the file says which that is and how (`shared/weights/adapter.py`)."""
    tensors: tuple[TensorEntry, ...] = ()


class DeltaRef(Part):
    """What makes the weights of `version` of those of `base_version`: see `shared/weights/delta.py`.

    `sha256` and `size_bytes` are of the delta's object; `base_sha256` and `result_sha256` of whole files of weights.
    """

    version: int = Field(ge=0)
    base_version: int = Field(ge=0)
    base_sha256: str
    result_sha256: str
    uri: str
    sha256: str
    size_bytes: int = Field(ge=0)


class Canary(Part):
    """Fixed prompts and the log-probabilities that these weights give them.

    token_ids int32[n] holds all sequences one after another, lengths int32[k] their lengths (sum n);
    logprobs float32[n]: entry t is log p(token t | earlier tokens of its sequence), 0 for each first token.
    An engine must be within `tolerance` (max absolute difference) before it produces.
    """

    token_ids: Int32Array
    lengths: Int32Array
    logprobs: Float32Array
    tolerance: float = Field(default=1e-3, gt=0)

    @model_validator(mode="after")
    def _one_length(self) -> Canary:
        total = int(self.lengths.sum())
        if not self.token_ids.size == self.logprobs.size == total:
            raise ValueError(
                f"canary lengths differ: token_ids {self.token_ids.size}, logprobs {self.logprobs.size}, lengths sum {total}"
            )
        return self


class Policy(Message):
    SCHEMA: ClassVar[str] = "temper.policy"

    run_id: str
    version: int = Field(ge=0)
    step: int = Field(ge=0)
    """Optimizer steps taken over the whole run when these weights were made."""
    stage: Stage
    stage_index: int = Field(ge=0)
    weights: WeightsRef
    deltas: tuple[DeltaRef, ...] = ()
    """Another way to these weights, oldest first: each is of what the one before makes, the last makes these. Empty:
    take the full weights. An engine that serves the base of one of them may go on from there."""
    canary: Canary
    checkpoint_uri: str
    """The folder of the complete checkpoint that holds these weights, optimizer, offsets and slots."""
    model_uri: str = ""
    """Where configuration and tokenizer of the model are (a Hugging Face folder)."""
    created_ms: int = 0

    @model_validator(mode="after")
    def _deltas_lead_here(self) -> Policy:
        ends = [delta.base_sha256 for delta in self.deltas[1:]] + [self.weights.sha256] * bool(self.deltas)
        for delta, wanted in zip(self.deltas, ends, strict=True):
            if delta.result_sha256 != wanted:
                raise ValueError(
                    f"the delta to version {delta.version} makes {delta.result_sha256[:12]}, what follows is of {wanted[:12]}"
                )
        return self

    def key(self) -> str:
        return f"{self.run_id}/policy"
