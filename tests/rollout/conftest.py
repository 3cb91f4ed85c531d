"""One tiny model for all tests of the rollout service."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from temper.models.tiny import make_tiny_model


@pytest.fixture(scope="session", autouse=True)
def _few_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def tiny_model(tiny_folder: Path) -> Any:
    """A model of the test's own: it may change the weights."""
    from services.rollout.engines.decoder import load_model

    return load_model(str(tiny_folder), "float32", "cpu")


@pytest.fixture
def tiny_tokenizer(tiny_folder: Path) -> Any:
    """A tokenizer of the test's own: it may change the chat template."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(tiny_folder), local_files_only=True)
