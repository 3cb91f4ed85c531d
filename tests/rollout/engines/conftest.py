"""One subject an engine; an engine that is not installed is reported as not run, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from services.rollout.engines.base import Engine
from services.rollout.engines.instant import InstantEngine
from tests.rollout.engines.completions_server import CompletionsServer
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


def open_openai(folder: Path) -> Engine:
    """Over HTTP to a server of this process, which ends with it."""
    from services.rollout.engines.openai import OpenAiEngine

    server = CompletionsServer(open_transformers(folder), folder / "model.safetensors")
    settings = settings_of(folder, engine="openai", server=server.url)
    engine = OpenAiEngine.open(settings, lambda text: np.zeros(0, dtype=np.int32))
    end = engine.close

    def close_both() -> None:
        end()
        if server.open:
            server.close()

    engine.close = close_both  # type: ignore[method-assign]
    return engine


OPENERS = {
    "transformers": open_transformers,
    "instant": open_instant,
    "openai": open_openai,
    "vllm": open_vllm,
}
WITH_WEIGHTS = tuple(name for name in OPENERS if name != "instant")


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


@pytest.fixture(params=WITH_WEIGHTS)
def model(request: pytest.FixtureRequest, opened: Callable[[str], Subject]) -> Subject:
    """A subject whose tokens come from weights."""
    return opened(request.param)


@pytest.fixture(params=tuple(name for name in WITH_WEIGHTS if name != "openai"))
def stepwise(request: pytest.FixtureRequest, opened: Callable[[str], Subject]) -> Subject:
    """A subject that can stop between two tokens of what runs."""
    return opened(request.param)
