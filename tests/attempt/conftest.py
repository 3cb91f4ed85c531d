"""One tiny model for the commands' tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from temper.models.tiny import make_tiny_model


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("models") / "tiny")
