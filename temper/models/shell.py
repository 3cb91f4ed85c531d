"""A tiny model whose tokenizer knows the words of `terminal` and `code_repair`: random weights, made here from nothing.

Invariant: the same seed gives the same bytes; nothing is downloaded. It knows nothing, and is small enough (a third of
a million parameters) to learn a few kinds of shell commands in minutes on two cores: a name is one or two tokens, so
that to copy it is one step and not six.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from temper.models.folders import prepare
from temper.models.little import little_llama
from temper.models.tiny import CHAT_TEMPLATE, END_TOKEN, PAD_TOKEN, ROLE_TOKENS, SPECIAL_TOKENS

RECIPE = "shell-llama/1"
VOCABULARY = 1536
_INSTANCES = 600
"""Of each domain's training split, from which the tokenizer's words are counted."""
_CONTEXT = 1024
_TOLD = 400


def make_shell_model(folder: Path, seed: int = 0) -> Path:
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


def _texts() -> Iterator[str]:
    """What the policy reads and writes, as far as the domain makes it."""
    from shared.domains.code_repair import CodeRepair
    from shared.domains.terminal import Terminal

    for domain, difficulty in ((Terminal(), {"jobs": 2}), (CodeRepair(), {"functions": 1})):
        for seed in range(_INSTANCES):
            instance = domain.instance(seed, difficulty)
            yield from (message.content for message in instance.messages)
            yield from (f"```bash\n{command}\n```" for command in domain.oracle(instance).commands)
            yield from (text for path, text in instance.files.items() if "/" in path)
    # How tools are told of and what they answer, often enough to count.
    yield from [
        "You may call tools by writing a block; its result comes in the next message. [no output]"
    ] * _TOLD
    yield from [
        "Runs a shell command in the work folder and returns what it printed.\n```bash\ncommand\n```"
    ] * _TOLD


def _tokenizer() -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    made.train_from_iterator(_texts(), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        eos_token=END_TOKEN,
        pad_token=PAD_TOKEN,
        additional_special_tokens=list(ROLE_TOKENS),
        model_max_length=_CONTEXT,
        clean_up_tokenization_spaces=False,
        chat_template=CHAT_TEMPLATE,
    )


def _copy_at_first(model: Any) -> None:
    """Each head begins by passing on the token that it looks at: value and output projections are each other's
    transposes, as in mimetic initialization (Trockman and Kolter, arXiv:2305.09828). With random ones a policy of this
    size took over 80 steps before it copied its first name."""
    import torch

    with torch.no_grad():
        for layer in model.model.layers:
            attention = layer.self_attn
            square = torch.empty_like(attention.v_proj.weight)
            torch.nn.init.orthogonal_(square)
            attention.v_proj.weight.copy_(square)
            attention.o_proj.weight.copy_(square.T)


def _model(vocabulary: int, seed: int) -> Any:
    pad, end = SPECIAL_TOKENS.index(PAD_TOKEN), SPECIAL_TOKENS.index(END_TOKEN)
    return little_llama(
        vocabulary, seed, pad=pad, end=end, key_value_heads=4, context=_CONTEXT, begin=_copy_at_first
    )
