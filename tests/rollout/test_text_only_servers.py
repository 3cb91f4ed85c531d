"""A server that returns text alone: what is evaluated is sampled there, what would be trained on is not."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from services.rollout.chat import ChatCodec
from services.rollout.engines.base import InexactEngineError
from services.rollout.engines.openai import OpenAiEngine
from services.rollout.engines.transformers import TransformersEngine
from services.rollout.single_turn import SingleTurn
from shared.contracts import Trajectory
from shared.settings import Settings
from shared.telemetry.tracing import Tracing
from tests.rollout.engines.completions_server import CompletionsServer
from tests.rollout.engines.subjects import settings_of
from tests.rollout.parts import make_task


@pytest.fixture
def settings(tiny_folder: Path) -> Iterator[Settings]:
    engine = TransformersEngine.open(settings_of(tiny_folder))
    server = CompletionsServer(engine, tiny_folder / "model.safetensors", "text")
    yield settings_of(tiny_folder, engine="openai", server=server.url)
    server.close()


@pytest.mark.parametrize(("purpose", "sampled"), [("eval", True), ("probe", True), ("train", False)])
def test_a_server_of_text_evaluates_single_turns(
    settings: Settings, tiny_folder: Path, purpose: str, sampled: bool
) -> None:
    codec = ChatCodec.open(str(tiny_folder))
    engine = OpenAiEngine.open(settings, codec.encode)
    made: list[Trajectory] = []

    async def send(trajectory: Trajectory) -> None:
        made.append(trajectory)

    async def served(version: int) -> int:
        return 0

    async def body() -> None:
        await engine.load_policy(tiny_folder / "model.safetensors", 0, None)
        work = SingleTurn(engine, codec, Tracing.off(), 0, "rollout-0", served)
        task: Any = make_task(settings, 1, samples=2, purpose=purpose)
        await work.attempt(task, send)

    try:
        if sampled:
            asyncio.run(body())
            assert len(made) == 2 and all(trajectory.final_answer for trajectory in made)
        else:
            with pytest.raises(InexactEngineError, match="may evaluate, not train"):
                asyncio.run(body())
            assert not made
    finally:
        engine.close()
