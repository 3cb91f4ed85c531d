"""One thread for torch: these models are so small that threads only wait for each other (a test of 0.5 s took 48 s on
two busy cores). No clock for property tests: on such cores they would fail for being slow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import torch
from learner_models import small_policy
from learner_world import STAGES

from shared.settings import Settings

torch.set_num_threads(1)
hypothesis.settings.register_profile("no clock", deadline=None)
hypothesis.settings.load_profile("no clock")


@pytest.fixture
def learner_settings(make_settings: Callable[..., Settings], tmp_path: Path) -> Callable[..., Settings]:
    def make(**changes: Any) -> Settings:
        small_policy().model.save_pretrained(str(tmp_path / "model"))
        return make_settings(**{"stages": STAGES, "scheduler": {"max_lag": 1}, **changes})

    return make
