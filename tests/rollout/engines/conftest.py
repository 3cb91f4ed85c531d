"""One subject an engine; an engine that is not installed is reported as not run, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from services.rollout.engines.base import Engine
from services.rollout.engines.instant import InstantEngine
from tests.rollout.engines.little_model import make_little_model
from tests.rollout.engines.subjects import Subject, missing, settings_of


@pytest.fixture(scope="session")
def little_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_little_model(tmp_path_factory.mktemp("models"))


def open_transformers(folder: Path) -> Engine:
    from services.rollout.engines.transformers import TransformersEngine

    return TransformersEngine.open(settings_of(folder))


def open_instant(folder: Path) -> Engine:
    """Certain tokens, another for each seed, as many as are asked for."""
    return InstantEngine(
        lambda asked: np.full(asked.max_tokens, 3 + asked.seed % 100, dtype=np.int32), latency_s=0.02
    )


def open_vllm(folder: Path) -> Engine:
    from services.rollout.engines.vllm import VllmEngine

    return VllmEngine.open(settings_of(folder))


OPENERS = {"transformers": open_transformers, "instant": open_instant, "vllm": open_vllm}


@pytest.fixture(scope="session")
def opened(little_folder: Path) -> Iterator[Callable[[str], Subject]]:
    """Each subject is opened when it is first wanted, once."""
    subjects: dict[str, Subject] = {}

    def get(name: str) -> Subject:
        if reason := missing(name):
            pytest.skip(reason)
        if name not in subjects:
            subjects[name] = Subject(name, little_folder, lambda: OPENERS[name](little_folder))
        return subjects[name]

    yield get
    for subject in subjects.values():
        subject.end()


@pytest.fixture(params=tuple(OPENERS))
def subject(request: pytest.FixtureRequest, opened: Callable[[str], Subject]) -> Subject:
    return opened(request.param)


@pytest.fixture(params=tuple(name for name in OPENERS if name != "instant"))
def model(request: pytest.FixtureRequest, opened: Callable[[str], Subject]) -> Subject:
    """A subject whose tokens come from weights."""
    return opened(request.param)
