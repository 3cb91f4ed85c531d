"""The model of the engine suite: a random Llama whose heads every engine can serve (vLLM's kernels want 32 wide)."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from temper.models.tiny import make_tiny_model

VOCABULARY = 103
POSITIONS = 512


def make_little_model(folder: Path) -> Path:
    """A Hugging Face folder with the tiny model's tokenizer."""
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

    tiny = make_tiny_model(folder / "tiny")
    made = folder / "little"
    shutil.copytree(tiny, made)
    config = LlamaConfig.from_pretrained(tiny)
    config.hidden_size, config.num_attention_heads, config.num_key_value_heads, config.head_dim = (
        128,
        4,
        2,
        32,
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(pad_token_id=0, eos_token_id=2)
    model.save_pretrained(str(made))
    return made


def scaled(weights: Path, place: Path, factor: float) -> Path:
    """Other weights of the same shapes, in a file of their own."""
    save_file({name: tensor * factor for name, tensor in load_file(str(weights)).items()}, str(place))
    return place
