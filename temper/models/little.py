"""The network of the models that are made here: two layers, some hundred thousand parameters, random weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def little_llama(
    vocabulary: int,
    seed: int,
    *,
    pad: int,
    end: int,
    key_value_heads: int,
    context: int,
    begin: Callable[[Any], None] = lambda model: None,
) -> Any:
    """A `LlamaForCausalLM` with float32 weights from `seed` alone; `begin` may change them, by the same numbers."""
    import torch
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=96,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=key_value_heads,
        max_position_embeddings=context,
        initializer_range=0.06,
        tie_word_embeddings=True,
        pad_token_id=pad,
        bos_token_id=None,
        eos_token_id=end,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
        begin(model)
    model.generation_config = GenerationConfig(pad_token_id=pad, eos_token_id=end)
    return model
