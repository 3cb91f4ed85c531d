"""One model and its key-value block: prompts in, logits out, one token a row and step.

Invariant: the logits of a row equal, up to float noise, those of a full forward pass over its tokens; the decoder
proves it on itself before it is used. Confined to one thread.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from services.rollout.engines.base import Ids, Logprobs
from services.rollout.engines.key_values import KeyValueBlock, ProbeCache, PromptCache, StepCache
from services.rollout.engines.weights import load_weights
from shared.errors import AttestationError, ConfigError, DependencyError
from shared.model_folder import check_loaded, check_weights
from shared.plain_errors import one_line

_PROMPT_TOKENS = 1024  # in one forward pass: more gains no speed, and holds up rows that decode
_SCORE_TOKENS = 512
_SELF_CHECK_TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-8}


def load_model(path: str, dtype: str, device: str) -> Any:
    """The model of a Hugging Face folder, for inference.

    Raises `DependencyError` (no such model, damaged, not fitting its configuration, no such device) and `ConfigError`
    (an attention that a shared block cannot serve, a device that there is no such kind of).
    """
    from transformers import AutoModelForCausalLM

    check_weights(path)
    place = choose_device(device)
    try:
        model, info = AutoModelForCausalLM.from_pretrained(
            path,
            dtype=getattr(torch, dtype),
            local_files_only=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
        )
    except Exception as error:
        # Damage shows as OSError, ValueError, RuntimeError, KeyError or SafetensorError, by the file that has it.
        raise DependencyError(f"model.path {path!r} cannot be loaded: {one_line(error)}") from error
    check_loaded(path, info)
    kinds = set(getattr(model.config, "layer_types", None) or ()) - {"full_attention"}
    if kinds or getattr(model.config, "sliding_window", None):
        raise ConfigError(
            f"model.path {path!r}: attention {sorted(kinds) or 'sliding_window'} is not served by the "
            "transformers engine; use a model with full attention"
        )
    try:
        return model.to(place).eval()
    except RuntimeError as error:  # out of memory, or a driver that does not start
        raise DependencyError(
            f"rollout.device {device!r} cannot hold the model: {one_line(error)}"
        ) from error


def choose_device(name: str) -> torch.device:
    """`auto` is the accelerator where there is one. Raises `DependencyError` for one that is not there."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"rollout.device is {name!r}: use auto, cpu, cuda or cuda:<n>") from error
    count = torch.cuda.device_count() if device.type == "cuda" else 0
    if device.type == "cuda" and (device.index or 0) >= count:
        raise DependencyError(
            f"rollout.device is {name!r} and this machine has {count} such accelerators: use auto or cpu"
        )
    return device


class Decoder:
    """`model` is a causal language model of `transformers`; rows are numbered 0 to b − 1 without gaps."""

    def __init__(self, model: Any, max_rows: int) -> None:
        self.model = model
        self.device: torch.device = model.device
        self.max_rows = max_rows
        self.max_length: int = model.config.max_position_embeddings
        self.vocabulary: int = model.config.vocab_size
        names = inspect.signature(type(model).forward).parameters
        self._cache_name = "cache" if "cache" in names else "past_key_values"
        self._lowest = torch.finfo(model.dtype).min
        self.block = KeyValueBlock(self._probe(), model.dtype, self.device)
        self._prove()

    def reserve(self, used_rows: int, rows: int, slots: int) -> None:
        self.block.ensure(used_rows, rows, slots, self.max_rows)

    @torch.inference_mode()
    def read_prompts(self, first_row: int, prompts: NDArray[np.int32]) -> Tensor:
        """Fills rows from `first_row` with prompts int32[n, p]; float32[n, v] logits of what comes next."""
        length = prompts.shape[1]
        step = max(1, _PROMPT_TOKENS // length)
        parts = []
        for start in range(0, len(prompts), step):
            part = torch.from_numpy(prompts[start : start + step].astype(np.int64)).to(self.device)
            cache = PromptCache(self.block, first_row + start, length)
            parts.append(self._forward(part, cache, keep=1))
        return torch.cat(parts)[:, -1]

    @torch.inference_mode()
    def step(self, tokens: NDArray[np.int64], places: NDArray[np.int64]) -> Tensor:
        """Row r takes tokens[r] as its token number places[r]; float32[b, v] logits of what comes next."""
        span = int(places.max()) + 1
        at = torch.from_numpy(places).to(self.device)
        seen = torch.arange(span, device=self.device) <= at.unsqueeze(-1)
        mask = torch.zeros(seen.shape, dtype=self.model.dtype, device=self.device)
        mask.masked_fill_(~seen, self._lowest)
        ids = torch.from_numpy(tokens).to(self.device).unsqueeze(-1)
        cache = StepCache(self.block, at, span)
        return self._call(ids, at.unsqueeze(-1), mask[:, None, None], cache, keep=1)[:, -1]

    @torch.inference_mode()
    def score(self, token_ids: Ids, lengths: Ids) -> Logprobs:
        """As `Engine.score`: full forward passes, no block."""
        out = np.zeros(len(token_ids), dtype=np.float32)
        ends = np.cumsum(lengths)
        for length in sorted({int(n) for n in lengths if n > 1}):
            starts = [int(end - n) for end, n in zip(ends, lengths, strict=True) if n == length]
            step = max(1, _SCORE_TOKENS // length)
            for place in range(0, len(starts), step):
                self._score_equal(token_ids, starts[place : place + step], length, out)
        return out

    @torch.inference_mode()
    def load(self, weights: Path) -> None:
        load_weights(self.model, weights)

    def _score_equal(self, token_ids: Ids, starts: list[int], length: int, out: Logprobs) -> None:
        rows = np.stack([token_ids[start : start + length] for start in starts]).astype(np.int64)
        ids = torch.from_numpy(rows).to(self.device)
        logits = self._forward(ids, None, keep=0)[:, :-1]
        picked = logits.gather(-1, ids[:, 1:].unsqueeze(-1)).squeeze(-1) - torch.logsumexp(logits, dim=-1)
        for start, values in zip(starts, picked.cpu().numpy(), strict=True):
            out[start + 1 : start + length] = values

    def _forward(self, ids: Tensor, cache: Any, keep: int) -> Tensor:
        """Full causal attention over ids int64[n, p]; logits of the last `keep` places, 0 for all."""
        length = ids.shape[1]
        positions = torch.arange(length, device=self.device)
        mask = torch.zeros((length, length), dtype=self.model.dtype, device=self.device)
        mask.masked_fill_(positions > positions.unsqueeze(-1), self._lowest)
        return self._call(ids, positions.expand(len(ids), -1), mask[None, None], cache, keep)

    def _call(self, ids: Tensor, positions: Tensor, mask: Tensor, cache: Any, keep: int) -> Tensor:
        out = self.model(
            input_ids=ids,
            position_ids=positions,
            attention_mask=mask,
            use_cache=False,
            logits_to_keep=keep,
            **{self._cache_name: cache},
        )
        logits: Tensor = out.logits.float()
        return logits

    @torch.inference_mode()
    def _probe(self) -> Any:
        cache = ProbeCache()
        self._forward(torch.zeros((1, 2), dtype=torch.int64, device=self.device), cache, keep=1)
        shape = cache.shape()
        if shape is None:
            raise DependencyError(
                f"model {type(self.model).__name__}: its layers keep keys and values of different shapes "
                f"({cache.seen}); the transformers engine cannot serve it"
            )
        return shape

    def _prove(self) -> None:
        """Rows of unequal length, decoded together, against full forward passes (invariant 8, of our own code)."""
        step = max(1, self.vocabulary // 12)
        rows = [np.arange(n, dtype=np.int32) * step % self.vocabulary for n in (7, 5)]
        self.reserve(0, 2, 8)
        last = [self.read_prompts(r, row[None, : len(row) - 2]) for r, row in enumerate(rows)]
        got = [[logits[0]] for logits in last]
        for offset in (2, 1):
            tokens = np.array([row[-offset] for row in rows], dtype=np.int64)
            logits = self.step(tokens, np.array([len(row) - offset for row in rows], dtype=np.int64))
            for r in range(len(rows)):
                got[r].append(logits[r])
        with torch.inference_mode():
            for row, own in zip(rows, got, strict=True):
                ids = torch.from_numpy(row.astype(np.int64)).to(self.device)[None]
                want = self._forward(ids, None, keep=3)[0]
                worst = float((torch.stack(own) - want).abs().max())
                if not worst <= _SELF_CHECK_TOLERANCE.get(self.model.dtype, 0.5):
                    raise AttestationError(
                        f"model {type(self.model).__name__}: logits decoded step by step differ by {worst:.3g} "
                        "from a full pass; this version of transformers caches in another way than this engine"
                    )
