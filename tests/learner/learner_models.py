"""A policy small enough for a test to train in milliseconds."""

from __future__ import annotations

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from services.learner.model import PolicyModel

VOCABULARY = 32


def small_policy(
    dtype: torch.dtype = torch.float32, seed: int = 0, tied: bool = True, width: int = 16
) -> PolicyModel:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=128,
        tie_word_embeddings=tied,
        initializer_range=0.3,
    )
    return PolicyModel(LlamaForCausalLM(config).to(dtype).train())
