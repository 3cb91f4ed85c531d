"""A tiny model made from nothing: random weights and a tokenizer of single characters.

Invariant: the same seed gives the same bytes; nothing is downloaded. It knows nothing, and is small enough
(about 0.2 million parameters) to learn one-digit sums in under a minute on two cores.
"""

from __future__ import annotations

import string
from pathlib import Path
from typing import Any

from temper.models.folders import prepare
from temper.models.little import little_llama

RECIPE = "tiny-llama/1"
PAD_TOKEN, UNKNOWN_TOKEN, END_TOKEN = "<|pad|>", "<|unknown|>", "<|end|>"
ROLE_TOKENS = tuple(f"<|{role}|>" for role in ("system", "user", "assistant", "tool"))
SPECIAL_TOKENS = (PAD_TOKEN, UNKNOWN_TOKEN, END_TOKEN, *ROLE_TOKENS)
CHARACTERS = "\n" + string.digits + string.ascii_letters + string.punctuation + " "

# A role is one token, so that a short question stays a short sequence.
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def make_tiny_model(folder: Path, seed: int = 0) -> Path:
    """Writes a random Llama with tied embeddings and its tokenizer into `folder`; idempotent.

    Raises `ConfigError` (folder is something else), `StorageError`.
    """
    return prepare(folder, {"name": RECIPE, "seed": str(seed)}, lambda made: _build(made, seed))


def _build(made: Path, seed: int) -> None:
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    tokenizer = _tokenizer()
    tokenizer.save_pretrained(str(made))
    _model(len(tokenizer), seed).save_pretrained(str(made))


def _tokenizer() -> Any:
    from tokenizers import Regex, Tokenizer
    from tokenizers.decoders import Fuse
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Split
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: index for index, token in enumerate((*SPECIAL_TOKENS, *CHARACTERS))}
    characters = Tokenizer(WordLevel(vocabulary, unk_token=UNKNOWN_TOKEN))
    characters.pre_tokenizer = Split(Regex(r"[\s\S]"), behavior="isolated")
    characters.decoder = Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=characters,
        eos_token=END_TOKEN,
        pad_token=PAD_TOKEN,
        unk_token=UNKNOWN_TOKEN,
        additional_special_tokens=list(ROLE_TOKENS),
        model_max_length=512,
        clean_up_tokenization_spaces=False,
        chat_template=CHAT_TEMPLATE,
    )


def _model(vocabulary: int, seed: int) -> Any:
    pad, end = SPECIAL_TOKENS.index(PAD_TOKEN), SPECIAL_TOKENS.index(END_TOKEN)
    return little_llama(vocabulary, seed, pad=pad, end=end, key_value_heads=2, context=512)
