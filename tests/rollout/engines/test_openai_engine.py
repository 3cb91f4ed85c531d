"""The openai engine against real servers: what makes one exact, what it is refused for, how it changes policies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.rollout.engines.base import (
    EngineDiedError,
    GenerationFault,
    InexactEngineError,
)
from services.rollout.engines.cut import Cut
from services.rollout.engines.openai import OpenAiEngine
from services.rollout.engines.openai_answer import Answer
from shared.errors import AttestationError, ConfigError, DependencyError
from tests.rollout.engines.completions_server import CompletionsServer
from tests.rollout.engines.conftest import open_transformers
from tests.rollout.engines.little_model import scaled
from tests.rollout.engines.subjects import canary_of, long_request, request, settings_of

Serve = Callable[[str], tuple[OpenAiEngine, CompletionsServer]]


def encode(text: str) -> np.ndarray[Any, Any]:
    return np.array([7 for _ in text], dtype=np.int32)


@pytest.fixture
def serve(little_folder: Path) -> Iterator[Serve]:
    opened: list[tuple[OpenAiEngine, CompletionsServer]] = []

    def start(kind: str) -> tuple[OpenAiEngine, CompletionsServer]:
        server = CompletionsServer(
            open_transformers(little_folder), little_folder / "model.safetensors", kind
        )
        settings = settings_of(little_folder, engine="openai", server=server.url)
        opened.append((OpenAiEngine.open(settings, encode), server))
        return opened[-1]

    yield start
    for engine, server in opened:
        engine.close()
        server.close()


@pytest.mark.parametrize(
    ("kind", "words"),
    [("text", "it returns no token ids"), ("scaled", "its log-probabilities at temperature 0.5 are .* off")],
)
def test_a_server_that_is_not_exact_evaluates_and_is_refused_for_training(
    serve: Serve, little_folder: Path, kind: str, words: str
) -> None:
    engine, _ = serve(kind)

    async def run() -> None:
        assert not engine.exact
        await engine.load_policy(little_folder / "model.safetensors", 3, None)
        with pytest.raises(InexactEngineError, match=f"may evaluate, not train: {words}"):
            await engine.generate(request(1))
        made = await engine.generate(request(1, exact=False))
        assert len(made.token_ids) == len(made.logprobs) >= 1
        if kind == "text":
            assert set(made.token_ids.tolist()) == {7} and not made.logprobs.any()

    asyncio.run(run())


def test_a_server_that_takes_no_weights_serves_only_what_it_reproduces(
    serve: Serve, little_folder: Path, tmp_path: Path
) -> None:
    engine, _ = serve("fixed")
    other = scaled(little_folder / "model.safetensors", tmp_path / "other.safetensors", 1.3)

    async def run() -> None:
        canary = await canary_of(engine)
        await engine.load_policy(little_folder / "model.safetensors", 0, canary)
        assert (await engine.generate(request(1))).versions[0][1] == 0
        wrong = canary.model_copy(update={"logprobs": canary.logprobs - np.float32(0.1)})
        with pytest.raises(AttestationError, match="takes no weights .* serves others"):
            await engine.load_policy(other, 1, wrong)
        assert engine.capacity().version == -1

    asyncio.run(run())


def test_a_change_of_policy_waits_for_what_runs_and_salts_the_cache(
    serve: Serve, little_folder: Path, tmp_path: Path
) -> None:
    engine, server = serve("full")
    other = scaled(little_folder / "model.safetensors", tmp_path / "other.safetensors", 1.3)

    async def run() -> None:
        await engine.load_policy(little_folder / "model.safetensors", 0, None)
        running = asyncio.create_task(engine.generate(long_request(1)))
        while not engine.capacity().running:
            await asyncio.sleep(0.001)
        await engine.load_policy(other, 1, None)
        assert running.done() and (await running).versions == ((400, 0),)
        before = set(server.salts)
        later = await engine.generate(long_request(1))
        assert later.versions == ((400, 1),)
        assert later.token_ids.tolist() != running.result().token_ids.tolist()
        assert server.salts[-1] not in before

    asyncio.run(run())


@pytest.mark.parametrize("kind", ["full", "whole"])
def test_a_cut_ends_the_request_at_the_server(serve: Serve, little_folder: Path, kind: str) -> None:
    """What the server streams is kept, and the rest is not sampled; a server that never streams leaves nothing."""
    engine, server = serve(kind)

    async def run() -> None:
        await engine.load_policy(little_folder / "model.safetensors", 4, None)
        served, made = server.engine, None
        watched = engine if kind == "full" else served
        while made is None or made.stop_reason != "cut":  # again where it was done before
            cut, before = Cut(), watched.capacity().sampled_tokens
            asked = asyncio.create_task(engine.generate(long_request(1, cut=cut)))
            while watched.capacity().sampled_tokens == before:
                await asyncio.sleep(0.001)
            cut.ask("hand_back")
            made = await asked
        assert (len(made.token_ids) > 0) == (kind == "full")
        assert made.versions == (((len(made.token_ids), 4),) if kind == "full" else ())
        while served.capacity().running:
            await asyncio.sleep(0.001)
        whole = await engine.generate(long_request(1))
        np.testing.assert_array_equal(whole.token_ids[: len(made.token_ids)], made.token_ids)

    asyncio.run(run())


def test_tokens_are_heard_as_they_are_streamed(serve: Serve, little_folder: Path) -> None:
    engine, _ = serve("full")

    async def run() -> None:
        await engine.load_policy(little_folder / "model.safetensors", 0, None)
        heard: list[int] = []
        made = await engine.generate(request(1, heard=heard.append))
        assert heard == made.token_ids.tolist()
        whole = await engine.generate(request(1))
        np.testing.assert_array_equal(whole.token_ids, made.token_ids)
        assert whole.stop_reason == made.stop_reason
        np.testing.assert_allclose(whole.logprobs, made.logprobs, atol=1e-3)

    asyncio.run(run())


def test_a_server_that_goes_away_is_the_engine_s_death(
    serve: Serve, little_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.rollout.engines.openai._WATCH_S", 0.05)
    engine, server = serve("full")

    async def run() -> None:
        await engine.load_policy(little_folder / "model.safetensors", 0, None)
        watching = asyncio.create_task(engine.watch())
        server._loop.call_soon_threadsafe(server._server.close)
        with pytest.raises(EngineDiedError, match="did not answer 5 times in a row"):
            await watching
        with pytest.raises(GenerationFault, match="rollout.server"):
            await engine.generate(request(1))

    asyncio.run(run())


def test_a_wrong_address_is_said_in_one_line(little_folder: Path) -> None:
    with pytest.raises(DependencyError, match="does not list its models"):
        OpenAiEngine.open(settings_of(little_folder, engine="openai", server="http://127.0.0.1:9/v1"), encode)
    with pytest.raises(ConfigError, match="give the server's base URL"):
        settings_of(little_folder, engine="openai")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["choices", "text", "token_ids", "logprobs", "token_logprobs", "finish_reason"]),
            inner,
        )
    ),
    max_leaves=12,
)


@given(
    JSON
    | JSON.map(lambda inner: {"choices": [inner]})
    | JSON.map(
        lambda ids: {"choices": [{"text": "a", "token_ids": ids, "logprobs": {"token_logprobs": ids}}]}
    )
)
def test_whatever_a_server_answers_is_a_generation_or_a_fault(answer: Any) -> None:
    try:
        made = Answer.of(answer, request(1, max_tokens=8), encode)
    except GenerationFault:
        return
    assert 1 <= len(made.ids) == len(made.logprobs) <= 8
