"""SmolLM2's own tokenizer, from the package that carries the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def smollm2_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """As `temper models prepare smollm2` saves it; the weights are not read."""
    from transformers import AutoTokenizer

    from temper.models import smollm2

    source, folder = smollm2.find_gguf(), tmp_path_factory.mktemp("smollm2")
    read = AutoTokenizer.from_pretrained(str(source.parent), gguf_file=source.name)
    smollm2._save_tokenizer(read, Path(folder))
    return AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
